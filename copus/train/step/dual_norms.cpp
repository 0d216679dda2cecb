#include "copus/train/step/dual_norms.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "copus/description/muon.h"
#include "copus/model/kernels/kernels.h"

namespace copus {

namespace {

// Returns the sum of the products of two matrices' elements.
double inner_product(const at::Tensor& one, const at::Tensor& other) {
  return one.mul(other).sum(at::kDouble).item<double>();
}

// Returns the matrix with the same singular vectors and singular values of 1, except for values that are tiny beside
// the largest.
at::Tensor orthogonal_factor(const at::Tensor& matrix) {
  constexpr int64_t steps = 12;
  return kernels::map_singular_values(matrix, newton_schulz_polynomials(NewtonSchulz::polar_express, steps),
                                      matrix.scalar_type());
}

}  // namespace

double average_decay(const OptimizerConfig& config) {
  return config.kind == OptimizerKind::muon ? config.muon.momentum : config.beta1;
}

DualMeasurement::DualMeasurement(const ParameterStore& parameters, const OptimizerConfig& config,
                                 const Optimizer& optimizer, MatrixExchange& exchange)
    : parameters_(parameters),
      decay_(average_decay(config)),
      epsilon_(config.kind == OptimizerKind::adamw ? std::optional(config.epsilon) : std::nullopt),
      optimizer_(optimizer),
      exchange_(exchange) {
  std::map<std::string, int64_t> indices;
  for (const ParameterInfo& parameter : list_parameters(parameters.model())) {
    if (is_hidden_matrix(parameter)) indices.emplace(parameter.name, std::ssize(indices));
  }
  for (const SharedMatrix& matrix : exchange.matrices()) {
    index_in_model_.push_back(indices.at(matrix.parameter.name));
  }
  groups_ = std::max<int64_t>(1, std::ssize(indices) / matrices_at_once);
}

// Whether measurement number `number` measures this matrix. Every group has about as many matrices of each kind: the
// indices are spread before they are divided, because the kinds of a layer's matrices repeat at a fixed distance.
bool DualMeasurement::is_due(int64_t index_in_model, int64_t number) const {
  constexpr uint64_t golden = 0x9E3779B97F4A7C15;  // 2^64 / the golden ratio (Knuth, vol. 3, 6.4)
  const uint64_t spread = (static_cast<uint64_t>(index_in_model) * golden) >> 32;
  return static_cast<int64_t>(spread * static_cast<uint64_t>(groups_) >> 32) == number % groups_;
}

std::array<ExactSum, DualMeasurement::num_sums> DualMeasurement::measure(int64_t number, double gradient_factor) {
  std::vector<const SharedMatrix*> matrices;
  for (size_t i = 0; i < index_in_model_.size(); ++i) {
    if (is_due(index_in_model_[i], number)) matrices.push_back(&exchange_.matrices()[i]);
  }
  const double correction = 1 / (1 - std::pow(decay_, optimizer_.steps()));
  const auto slot = [&](size_t index) {
    return [this, index](const SharedMatrix& matrix, const MatrixPart& part) {
      return exchange_.view(optimizer_.slot_tensors(index)[matrix.bucket], matrix, part).contiguous();
    };
  };
  const auto gradient_of = [&](const SharedMatrix& matrix, const MatrixPart& part) {
    return exchange_.view(parameters_.buckets()[matrix.bucket].gradient_shard, matrix, part).contiguous();
  };
  std::array<ExactSum, num_sums> sums;
  for (const MatrixExchange::Round& round : exchange_.rounds_of(matrices)) {
    at::Tensor average = exchange_.gather(round, slot(0)), gradient = exchange_.gather(round, gradient_of);
    at::Tensor weights = epsilon_ ? exchange_.gather(round, slot(1)) : at::Tensor();
    if (!average.defined()) continue;
    average.mul_(correction);
    gradient.mul_(gradient_factor);
    const at::Tensor noise = gradient.sub(average);
    std::array<double, num_sums> values = {inner_product(noise, noise.sign()), inner_product(gradient, average.sign()),
                                           inner_product(noise, orthogonal_factor(noise)),
                                           inner_product(gradient, orthogonal_factor(average))};
    if (epsilon_) {
      weights.sqrt_().add_(*epsilon_).reciprocal_();
      values[4] = inner_product(noise, noise.mul(weights));
      weights.mul_(average);
      values[5] = inner_product(gradient, weights);
      values[6] = inner_product(average, weights);
    }
    for (size_t i = 0; i < values.size(); ++i) sums[i].add(values[i]);
  }
  return sums;
}

DualNormsOfStep DualMeasurement::norms_from(std::span<const double> sums) const {
  DualNormsOfStep norms{.sign = {.noise = sums[0], .signal = sums[1]},
                        .spectral = {.noise = sums[2], .signal = sums[3]},
                        .preconditioned = std::nullopt};
  if (epsilon_) norms.preconditioned = {.noise = std::sqrt(sums[4]), .signal = sums[5] / std::sqrt(sums[6])};
  return norms;
}

}  // namespace copus
