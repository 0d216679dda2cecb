// The end of the model: final norm, head and loss. With tensor parallelism every rank holds the head for a part of the
// vocabulary, and ranks combine their softmax statistics by one small message per chunk of rows (Shoeybi et al. 2019,
// section 3).
#pragma once

#include <ATen/core/Tensor.h>

#include "copus/model/layers/block.h"
#include "copus/model/layers/tensor_parallel.h"
#include "copus/model/memory/parameters.h"

namespace copus {

class OutputHead {
 public:
  OutputHead(const ParameterStore& parameters, const TensorParallel& tensor_parallel);

  kernels::NormResult normalize(const ResidualStream& stream) const;
  // Returns the logits for normalised rows: [rows, vocab], master dtype. Only without tensor parallelism.
  at::Tensor logits(const at::Tensor& normed) const;

  // Adds the sum of the rows' losses to loss_sum (float64 scalar tensor). Every tensor-parallel rank gets the same sum.
  // targets: int64 [rows].
  void loss(const ResidualStream& stream, const at::Tensor& targets, const at::Tensor& loss_sum) const;

  // Adds the loss to loss_sum as loss() does, and the gradients of loss_scale * loss to the main gradients. Returns the
  // gradient of the stream, [local rows, hidden].
  at::Tensor backward(ResidualStream stream, const at::Tensor& targets, double loss_scale,
                      const at::Tensor& loss_sum) const;

 private:
  void token_losses(const at::Tensor& hidden, const at::Tensor& targets, double loss_scale, const at::Tensor& loss_sum,
                    const at::Tensor& hidden_gradient) const;
  void cross_entropy(const at::Tensor& logits, const at::Tensor& targets, double loss_scale, bool gradient,
                     const at::Tensor& loss_sum) const;

  TensorParallel tensor_parallel_;
  int64_t rows_per_chunk_;
  StreamNorm norm_;
  double softcap_;         // of the logits; 0: none
  double multiplier_;      // factor on the head's input, and so on the logits
  const Parameter& head_;  // has its own gradient if it is tied to the embedding
};

}  // namespace copus
