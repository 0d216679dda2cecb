#include "copus/model/input_embedding.h"

#include "copus/model/kernels.h"

namespace copus {

InputEmbedding::InputEmbedding(const ParameterStore& parameters, const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel), table_(parameters.find("model.embed_tokens.weight")) {}

at::Tensor InputEmbedding::forward(const at::Tensor& tokens) const {
  if (tensor_parallel_.size() == 1) return kernels::embedding(table_.weight, tokens);
  return tensor_parallel_.reduce(kernels::embedding_part(table_.weight, tokens, table_.box.begin[0]));
}

void InputEmbedding::backward(const at::Tensor& dy, const at::Tensor& tokens) const {
  kernels::add_embedding_gradient(table_.gradient, tensor_parallel_.gather(dy), tokens, table_.box.begin[0]);
}

}  // namespace copus
