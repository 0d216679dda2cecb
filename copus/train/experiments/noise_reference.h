// Measures the gradient noise scale at fixed weights from gradients of single sequences, as a reference for the
// measurement during training (gradient_probe.h). The small batch is 1 and the large batch 64, as for OLMo (Merrill et
// al. 2025, arXiv 2505.23971, appendix B).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "copus/data/dataset.h"
#include "copus/model/layers/decoder.h"
#include "copus/model/memory/parameters.h"
#include "copus/statistics/gradient_noise.h"

namespace copus {

class NoiseReference {
 public:
  // All three arguments must outlive this object. `parameters` must hold the whole model. Allocates a second gradient
  // buffer.
  NoiseReference(ParameterStore& parameters, Decoder& decoder, const Dataset& dataset);

  // Measures the norms of samples first_sample .. first_sample + batch in the dataset's order. The small batch is 1
  // (each sample separately), the large batch is `batch` >= 2. Scaling is as in training: the mean of the samples'
  // gradients is the gradient of the batch's mean loss per token. Overwrites the main gradients. Throws UserError for a
  // token outside of the vocabulary. If the model has diverged, norms are not finite.
  NormObservation observe(uint64_t first_sample, int64_t batch);

 private:
  ParameterStore& parameters_;
  Decoder& decoder_;
  const Dataset& dataset_;
  std::vector<at::Tensor> sums_;  // by bucket; undefined for a tied head, whose gradient is added to the embedding's
};

}  // namespace copus
