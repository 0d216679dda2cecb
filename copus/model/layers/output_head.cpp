#include "copus/model/layers/output_head.h"

#include <algorithm>
#include <utility>

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"
#include "copus/placement/head_chunks.h"

namespace copus {
namespace {

// Returns the rows per chunk. All tensor-parallel ranks need the same number, because each chunk ends with a message
// between them. (Their parts of the vocabulary may differ by a token.) On a GPU it is a multiple of bucket_alignment,
// which suits matrix products.
int64_t rows_per_chunk(int64_t vocab_size, int64_t tensor_parallel, at::Device device) {
  const int64_t largest_part = (vocab_size + tensor_parallel - 1) / tensor_parallel;
  if (device.is_cpu()) return std::max<int64_t>(bucket_alignment, logits_at_once_on_cpu / largest_part);
  const int64_t rows = logits_at_once_on_gpu / largest_part;
  return std::max<int64_t>(bucket_alignment, rows / bucket_alignment * bucket_alignment);
}

}  // namespace

OutputHead::OutputHead(const ParameterStore& parameters, const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel),
      rows_per_chunk_(rows_per_chunk(parameters.model().vocab_size, tensor_parallel.size(), parameters.device())),
      norm_(parameters, "model.norm"),
      softcap_(parameters.model().logits_softcap),
      multiplier_(1 / parameters.model().logits_scaling),
      head_(parameters.model().tie_word_embeddings ? *parameters.find_tied_copy() : parameters.find("lm_head.weight")) {
}

kernels::NormResult OutputHead::normalize(const ResidualStream& stream) const {
  kernels::NormResult norm = norm_.forward(stream.residual, stream.delta);
  if (multiplier_ != 1) norm.normed = kernels::multiply(norm.normed, multiplier_);
  return norm;
}

at::Tensor OutputHead::logits(const at::Tensor& normed) const {
  COPUS_CHECK(tensor_parallel_.size() == 1, "each of ", tensor_parallel_.size(), " ranks has a part of the logits");
  const at::Tensor logits = kernels::linear(normed, head_.weight, {}).to(head_.gradient.scalar_type());
  return softcap_ > 0 ? kernels::soft_cap(logits, softcap_) : logits;
}

void OutputHead::loss(const ResidualStream& stream, const at::Tensor& targets, const at::Tensor& loss_sum) const {
  token_losses(tensor_parallel_.gather(normalize(stream).normed), targets, 1.0, loss_sum, {});
}

at::Tensor OutputHead::backward(ResidualStream stream, const at::Tensor& targets, double loss_scale,
                                const at::Tensor& loss_sum) const {
  kernels::NormResult norm = normalize(stream);
  stream = {};
  at::Tensor hidden = tensor_parallel_.gather(std::exchange(norm.normed, {}));
  at::Tensor gradient = kernels::empty(hidden.sizes(), hidden.scalar_type(), hidden.device());
  token_losses(hidden, targets, loss_scale, loss_sum, gradient);
  hidden.reset();
  gradient = tensor_parallel_.reduce(gradient);
  if (multiplier_ != 1) gradient = kernels::multiply(gradient, multiplier_);
  WeightGradients at_once(WeightGradients::Mode::immediate);
  return norm_.backward(gradient, norm.sum, norm.statistics, {}, at_once);
}

// Adds the losses of all rows of `hidden` [rows, hidden] to `loss_sum`. If `hidden_gradient` is defined, also
// accumulates the head's weight gradient, and writes the gradient of `hidden` to `hidden_gradient`. With tensor
// parallelism, this is only this rank's term of the gradient, which is a sum over ranks. Each chunk's logits are
// overwritten by their gradient, and then freed.
void OutputHead::token_losses(const at::Tensor& hidden, const at::Tensor& targets, double loss_scale,
                              const at::Tensor& loss_sum, const at::Tensor& hidden_gradient) const {
  const int64_t rows = hidden.size(0);
  for (int64_t first = 0; first < rows; first += rows_per_chunk_) {
    const int64_t count = std::min(rows_per_chunk_, rows - first);
    const at::Tensor chunk = hidden.narrow(0, first, count);
    const at::Tensor logits = kernels::linear(chunk, head_.weight, {});
    cross_entropy(logits, targets.narrow(0, first, count), loss_scale, hidden_gradient.defined(), loss_sum);
    if (!hidden_gradient.defined()) continue;
    kernels::linear_input_gradient_into(hidden_gradient.narrow(0, first, count), logits, head_.weight);
    kernels::add_linear_weight_gradient(head_.gradient, logits, chunk);
  }
}

void OutputHead::cross_entropy(const at::Tensor& logits, const at::Tensor& targets, double loss_scale, bool gradient,
                               const at::Tensor& loss_sum) const {
  if (tensor_parallel_.size() == 1) {
    return kernels::cross_entropy_(logits, targets, loss_scale, gradient, loss_sum, softcap_);
  }
  // Every rank fills its own part; all other parts are zero, so the sum over the ranks is exact.
  const int64_t first_token = head_.box.begin[0];
  const at::Tensor statistics =
      kernels::zeros({tensor_parallel_.size(), logits.size(0), 3}, at::kDouble, logits.device());
  statistics.select(0, tensor_parallel_.rank())
      .copy_(kernels::softmax_statistics(logits, targets, first_token, softcap_));
  tensor_parallel_.add_up(statistics);
  kernels::cross_entropy_part_(logits, targets, first_token, statistics, loss_scale, gradient, loss_sum, softcap_);
}

}  // namespace copus
