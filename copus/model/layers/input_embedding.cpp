#include "copus/model/layers/input_embedding.h"

#include <ATen/ops/scalar_tensor.h>

#include <vector>

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"

namespace copus {

InputEmbedding::InputEmbedding(const ParameterStore& parameters, const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel),
      table_(parameters.find(token_embedding_name)),
      positions_(parameters.model().learned_positions ? &parameters.find("model.embed_positions.weight") : nullptr),
      multiplier_(parameters.model().embedding_multiplier) {
  if (!parameters.model().rounds_embedding_multiplier) return;
  multiplier_ = at::scalar_tensor(multiplier_, table_.weight.scalar_type()).item<double>();
}

at::Tensor InputEmbedding::positions_from(const at::Tensor& tokens, int64_t first) const {
  if (positions_ == nullptr) return {};
  const int64_t sequence = tokens.size(1);
  COPUS_CHECK(first + sequence <= positions_->info.shape[0], "position ", first + sequence - 1, " of ",
              positions_->info.shape[0]);
  std::vector<int64_t> positions(tokens.numel());
  for (size_t row = 0; row < positions.size(); ++row) positions[row] = first + static_cast<int64_t>(row) % sequence;
  return kernels::from_host(positions.data(), {tokens.numel()}, tokens.device());
}

at::Tensor InputEmbedding::forward(const at::Tensor& tokens, const at::Tensor& positions) const {
  const at::Tensor rows = tokens.reshape({-1});
  const bool is_whole = tensor_parallel_.size() == 1;
  at::Tensor term = is_whole ? kernels::embedding(table_.weight, rows)
                             : kernels::embedding_part(table_.weight, rows, table_.box.begin[0]);
  if (multiplier_ != 1) term = kernels::multiply(term, multiplier_);
  if (positions_ != nullptr && tensor_parallel_.rank() == 0) {
    term = kernels::add(term, kernels::embedding(positions_->weight, positions));
  }
  return tensor_parallel_.reduce(term);
}

void InputEmbedding::backward(const at::Tensor& dy, const at::Tensor& tokens, const at::Tensor& positions) const {
  const at::Tensor all = tensor_parallel_.gather(dy);
  const at::Tensor of_table = multiplier_ == 1 ? all : kernels::multiply(all, multiplier_);
  kernels::add_embedding_gradient(table_.gradient, of_table, tokens.reshape({-1}), table_.box.begin[0]);
  if (positions_ == nullptr) return;
  kernels::add_embedding_gradient(positions_->gradient, all, positions, 0);
}

}  // namespace copus
