#include "copus/train/step/dual_norms.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "copus/description/muon.h"
#include "copus/model/kernels/kernels.h"

namespace copus {

namespace {

// Returns the sum of the products of corresponding elements.
double inner_product(const at::Tensor& one, const at::Tensor& other) {
  return one.mul(other).sum(at::kDouble).item<double>();
}

// Returns the matrix with the same singular vectors and with all singular values equal to 1. Only singular values that
// are tiny relative to the largest one stay below 1.
at::Tensor orthogonal_factor(const at::Tensor& matrix) {
  constexpr int64_t steps = 12;
  return kernels::map_singular_values(matrix, newton_schulz_polynomials(NewtonSchulz::polar_express, steps),
                                      matrix.scalar_type());
}

}  // namespace

DualMeasurement::DualMeasurement(const ParameterStore& parameters, const OptimizerConfig& config,
                                 const Optimizer& optimizer, MatrixExchange& exchange)
    : parameters_(parameters),
      epsilon_(config.kind == OptimizerKind::adamw ? std::optional(config.epsilon) : std::nullopt),
      optimizer_(optimizer),
      exchange_(exchange) {
  std::map<std::string, int64_t> in_model, in_store;
  for (const ParameterInfo& parameter : list_parameters(parameters.model())) {
    if (is_hidden_matrix(parameter)) in_model.emplace(parameter.name, std::ssize(in_model));
  }
  for (int64_t index = 0; index < std::ssize(parameters.parameters()); ++index) {  // tied copies share a name
    in_store.emplace(parameters.parameters()[index].info.name, index);
  }
  for (const SharedMatrix& matrix : exchange.matrices()) {
    matrices_.push_back({in_model.at(matrix.parameter.name), in_store.at(matrix.parameter.name)});
  }
  groups_ = num_dual_groups(parameters.model());
}

bool DualMeasurement::is_due(int64_t index_in_model, int64_t number) const {
  return dual_group_of(index_in_model, groups_) == number % groups_;
}

std::vector<int64_t> DualMeasurement::parameters_of(int64_t number) const {
  std::vector<int64_t> parameters;
  for (const Matrix& matrix : matrices_) {
    if (is_due(matrix.index_in_model, number)) parameters.push_back(matrix.parameter);
  }
  return parameters;
}

std::array<ExactSum, DualMeasurement::num_sums> DualMeasurement::measure(int64_t number,
                                                                         const std::vector<at::Tensor>& kept,
                                                                         double share, double gradient_factor) {
  std::vector<const SharedMatrix*> matrices;
  std::map<const SharedMatrix*, at::Tensor> kept_of;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    if (!is_due(matrices_[i].index_in_model, number)) continue;
    const SharedMatrix* const matrix = &exchange_.matrices()[i];
    kept_of[matrix] = kept.at(matrices.size());
    matrices.push_back(matrix);
  }
  const auto part_of = [&](const SharedMatrix& matrix, const MatrixPart& part) {
    return kept_of.at(&matrix).narrow(0, part.elements.begin, part.elements.size());
  };
  const auto gradient_of = [&](const SharedMatrix& matrix, const MatrixPart& part) {
    return exchange_.view(parameters_.buckets()[matrix.bucket].gradient_shard, matrix, part).contiguous();
  };
  const auto squares_of = [&](const SharedMatrix& matrix, const MatrixPart& part) {
    return exchange_.view(optimizer_.slot_tensors(1)[matrix.bucket], matrix, part).contiguous();
  };
  std::array<ExactSum, num_sums> sums;
  for (const MatrixExchange::Round& round : exchange_.rounds_of(matrices)) {
    at::Tensor gradient = exchange_.gather(round, part_of), mean = exchange_.gather(round, gradient_of);
    at::Tensor weights = epsilon_ ? exchange_.gather(round, squares_of) : at::Tensor();
    if (!mean.defined()) continue;
    mean.sub_(gradient).mul_(gradient_factor / (1 - share));
    gradient.mul_(gradient_factor / share);
    const at::Tensor noise = gradient.sub(mean);
    std::array<double, num_sums> values = {};  // one statement each, so that temporaries do not add up
    values[0] = inner_product(noise, noise.sign());
    values[1] = inner_product(gradient, mean.sign());
    values[2] = inner_product(noise, orthogonal_factor(noise));
    values[3] = inner_product(gradient, orthogonal_factor(mean));
    if (epsilon_) {
      weights.sqrt_().add_(*epsilon_).reciprocal_();
      values[4] = inner_product(noise, noise.mul(weights));
      weights.mul_(mean);
      values[5] = inner_product(gradient, weights);
      values[6] = inner_product(mean, weights);
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
