// The gradient noise scale at fixed weights, from the gradients of single sequences: the reference for what training
// measures as it goes along (gradient_probe.h). Small batch 1, large batch 64, as it was measured for OLMo (Merrill et
// al. 2025, arXiv 2505.23971, appendix B).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "copus/data/dataset.h"
#include "copus/model/decoder.h"
#include "copus/model/parameters.h"
#include "copus/statistics/gradient_noise.h"

namespace copus {

class NoiseReference {
 public:
  // Refers to all three for its whole life. `parameters` holds the whole model. Allocates one more buffer for its
  // gradient.
  NoiseReference(ParameterStore& parameters, Decoder& decoder, const Dataset& dataset);

  // Measures the norms of one batch, samples first_sample .. first_sample + batch of the dataset's order: small batch
  // 1, each sample alone, and large batch `batch` >= 2. They are scaled as in training: the mean of the samples'
  // gradients is the gradient of the batch's mean loss over its tokens. Overwrites the main gradients. Throws UserError
  // for a token outside the vocabulary; norms of a model that has diverged are not finite.
  NormObservation observe(uint64_t first_sample, int64_t batch);

 private:
  ParameterStore& parameters_;
  Decoder& decoder_;
  const Dataset& dataset_;
  std::vector<at::Tensor> sums_;  // by bucket; undefined for a tied head, whose gradient is added to the embedding's
};

}  // namespace copus
