#include "copus/model/layers/stream_norm.h"

namespace copus {

StreamNorm::StreamNorm(const ParameterStore& parameters, const std::string& module)
    : epsilon_(parameters.model().rms_norm_eps), adds_one_(parameters.model().norms_add_one) {
  const Parameter& weight = parameters.find(module + ".weight");
  weight_ = weight.weight;
  weight_gradient_ = weight.gradient;
  if (parameters.model().norm == NormKind::rms) return;
  const Parameter& bias = parameters.find(module + ".bias");
  bias_ = bias.weight;
  bias_gradient_ = bias.gradient;
}

kernels::NormResult StreamNorm::forward(const at::Tensor& residual, const at::Tensor& delta) const {
  return kernels::add_norm(residual, delta, weight(), bias_, epsilon_);
}

at::Tensor StreamNorm::backward(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& statistics,
                                const at::Tensor& residual_gradient, WeightGradients& weight_gradients) const {
  if (bias_.defined()) kernels::add_linear_bias_gradient(weight_gradients.add_norm(bias_gradient_), dy);
  return kernels::norm_backward(dy, input, statistics, weight(), residual_gradient,
                                weight_gradients.add_norm(weight_gradient_));
}

}  // namespace copus
