// The generic kernels of norms and activations: compositions of ATen operators (kernel_implementations.h).
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/sigmoid.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "copus/model/kernels/kernel_implementations.h"

namespace copus::kernels::generic {

NormResult add_norm(const at::Tensor& residual, const at::Tensor& delta, const at::Tensor& weight,
                    const at::Tensor& bias, double epsilon) {
  NormResult result;
  result.sum = delta.defined() ? at::add(residual, delta) : residual;
  at::Tensor x = result.sum.to(master_dtype(residual)), mean;
  if (bias.defined()) {
    mean = x.mean(1, true);
    x = x - mean;
  }
  const at::Tensor rstd = x.square().mean(1, true).add_(epsilon).rsqrt_();
  const at::Tensor normed = x * rstd * weight;
  result.normed = (bias.defined() ? normed + bias : normed).to(residual.scalar_type());
  result.statistics = bias.defined() ? at::cat({mean, rstd}, 1) : rstd.squeeze(1);
  return result;
}

at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& statistics,
                         const at::Tensor& weight, const at::Tensor& residual_gradient,
                         const at::Tensor& weight_gradient) {
  const at::ScalarType wide = master_dtype(dy);
  const bool is_layer = statistics.dim() == 2;
  const at::Tensor r = is_layer ? statistics.narrow(1, 1, 1) : statistics.unsqueeze(1), gradient = dy.to(wide);
  const at::Tensor x = is_layer ? input.to(wide) - statistics.narrow(1, 0, 1) : input.to(wide), normalized = x * r;
  weight_gradient.add_((gradient * normalized).sum(0));
  at::Tensor weighted = gradient * weight;
  const at::Tensor projection = (weighted * normalized).mean(1, true);
  if (is_layer) weighted = weighted - weighted.mean(1, true);
  at::Tensor dx = (weighted - normalized * projection) * r;
  if (residual_gradient.defined()) dx = dx + residual_gradient;
  return dx.to(dy.scalar_type());
}

namespace {

// An activation function and its derivative.
struct Activated {
  at::Tensor value, slope;
};

// Computes x Phi(x), where Phi is the normal distribution function.
Activated exact_gelu(const at::Tensor& x) {
  const at::Tensor phi = at::erf(x / std::numbers::sqrt2).add(1).div(2);
  const at::Tensor density = (x.square() / -2).exp() * (std::numbers::inv_sqrtpi / std::numbers::sqrt2);
  return {x * phi, phi + x * density};
}

// Computes x sigmoid(z(x)): SiLU with z = x, and GELU's tanh approximation with z = 2 sqrt(2 / pi) (x + 0.044715 x^3),
// since (1 + tanh(z / 2)) / 2 = sigmoid(z).
Activated activated(const at::Tensor& x, ActivationFunction function) {
  if (function == ActivationFunction::gelu) return exact_gelu(x);
  const bool is_silu = function == ActivationFunction::silu;
  const double scale = 2 * std::sqrt(2 / std::numbers::pi), cube = 0.044715;
  const at::Tensor squares = x.square();
  const at::Tensor sigmoid = at::sigmoid(is_silu ? x : x * (squares * cube + 1) * scale), value = x * sigmoid;
  const at::Tensor change = value * (1 - sigmoid);
  return {value, sigmoid + (is_silu ? change : change * (squares * (3 * cube) + 1) * scale)};
}

}  // namespace

at::Tensor activate(const at::Tensor& input, const Activation& activation) {
  const std::vector<at::Tensor> parts = input.to(master_dtype(input)).chunk(activation.is_gated ? 2 : 1, 1);
  const at::Tensor value = activated(parts.front(), activation.function).value;
  return (activation.is_gated ? value * parts.back() : value).to(input.scalar_type());
}

ActivationGradient activate_backward(const at::Tensor& activation_gradient, const at::Tensor& input,
                                     const Activation& activation) {
  const at::ScalarType wide = master_dtype(input), narrow = input.scalar_type();
  const std::vector<at::Tensor> parts = input.to(wide).chunk(activation.is_gated ? 2 : 1, 1);
  const at::Tensor dy = activation_gradient.to(wide);
  const auto [value, slope] = activated(parts.front(), activation.function);
  if (!activation.is_gated) return {(dy * slope).to(narrow), value.to(narrow)};
  return {at::cat({dy * parts.back() * slope, dy * value}, 1).to(narrow), (value * parts.back()).to(narrow)};
}

}  // namespace copus::kernels::generic
