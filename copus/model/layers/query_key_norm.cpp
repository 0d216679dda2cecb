#include "copus/model/layers/query_key_norm.h"

#include "copus/base/error.h"

namespace copus {

QueryKeyNorm::QueryKeyNorm(const ParameterStore& parameters, const std::string& prefix,
                           const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel),
      kind_(parameters.model().qk_norm),
      adds_one_(parameters.model().norms_add_one),
      counts_keys_(true) {
  if (kind_ == QkNorm::none) return;
  const ModelDescription& model = parameters.model();
  const Parameter& query = parameters.find(prefix + "q_norm.weight");
  const Parameter& key = parameters.find(prefix + "k_norm.weight");
  norm_ = {.query_weight = query.weight,
           .key_weight = key.weight,
           .query_width = model.num_heads * model.head_dim,
           .key_width = model.num_kv_heads * model.head_dim,
           .epsilon = model.rms_norm_eps};
  query_gradient_ = query.gradient;
  key_gradient_ = key.gradient;
  counts_keys_ = tensor_parallel_.rank() % key.sharding.replicas == 0;
}

kernels::ProjectionNorm QueryKeyNorm::norm() const {
  kernels::ProjectionNorm norm = norm_;
  if (adds_one_) {
    norm.query_weight = kernels::add_one(norm.query_weight);
    norm.key_weight = kernels::add_one(norm.key_weight);
  }
  return norm;
}

void QueryKeyNorm::leave_keys_to_first_replica(const at::Tensor& sums) const {
  if (!counts_keys_) sums.select(1, 1).zero_();
}

at::Tensor QueryKeyNorm::statistics(const at::Tensor& qkv, const kernels::AttentionShape& shape) const {
  if (kind_ != QkNorm::projection) return {};
  at::Tensor squares = kernels::projection_squares(qkv, shape);
  leave_keys_to_first_replica(squares);
  tensor_parallel_.add_up(squares);
  return squares;
}

at::Tensor QueryKeyNorm::forward(const at::Tensor& qkv, const kernels::AttentionShape& shape,
                                 const at::Tensor& statistics) const {
  if (kind_ == QkNorm::none) return qkv;
  const kernels::ProjectionNorm norm = this->norm();
  switch (kind_) {
    case QkNorm::none:
      break;
    case QkNorm::head:
      return kernels::normalize_heads(qkv, shape, norm.query_weight, norm.key_weight, norm.epsilon);
    case QkNorm::projection:
      return kernels::normalize_projections(qkv, shape, norm, statistics);
  }
  fail_check("known norm", __FILE__, __LINE__, "");
}

void QueryKeyNorm::backward_(const at::Tensor& gradient, const at::Tensor& qkv, const kernels::AttentionShape& shape,
                             const at::Tensor& statistics, WeightGradients& weight_gradients) const {
  if (kind_ == QkNorm::none) return;
  const kernels::ProjectionNorm norm = this->norm();
  const at::Tensor of_query = weight_gradients.add_norm(query_gradient_);
  const at::Tensor of_key = weight_gradients.add_norm(key_gradient_);
  if (kind_ == QkNorm::head) {
    kernels::normalize_heads_backward_(gradient, qkv, shape, norm.query_weight, norm.key_weight, norm.epsilon, of_query,
                                       of_key);
    return;
  }
  // If several ranks hold the same key heads, the gradient of these heads is the sum of one term per rank, and all
  // terms count in the products. Only the first rank subtracts the component parallel to the keys, because it must be
  // subtracted once from the sum.
  const at::Tensor products = kernels::projection_products(gradient, qkv, shape, norm);
  tensor_parallel_.add_up(products);
  leave_keys_to_first_replica(products);
  kernels::normalize_projections_backward_(gradient, qkv, shape, norm, statistics, products, of_query, of_key);
}

}  // namespace copus
