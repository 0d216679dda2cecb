#include "copus/description/muon.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr QuinticPolynomial jordan = {3.4445, -4.7750, 2.0315};

// Iterations beyond the end of the list use the last polynomial.
constexpr std::array<QuinticPolynomial, 8> polar_express = {{
    {8.28721201814563, -23.595886519098837, 17.300387312530933},
    {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
    {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
    {3.3184196573706015, -2.488488024314874, 0.51004894012372},
    {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
    {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
    {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
    {1.875, -1.25, 0.375},
}};

// Scales a polynomial's argument down, so that rounding cannot push a singular value out of the polynomial's interval.
QuinticPolynomial with_safety_factor(const QuinticPolynomial& polynomial) {
  constexpr double factor = 1.01;
  return {polynomial.a / factor, polynomial.b / std::pow(factor, 3), polynomial.c / std::pow(factor, 5)};
}

}  // namespace

int64_t num_dual_groups(const ModelDescription& model) {
  constexpr int64_t matrices_at_once = 16;
  const std::vector<ParameterInfo> parameters = list_parameters(model);
  return std::max<int64_t>(1, std::ranges::count_if(parameters, is_hidden_matrix) / matrices_at_once);
}

// Shuffles the indices before it divides them into groups. Otherwise a group would have only some kinds of matrices,
// because the kinds repeat from layer to layer at a fixed distance.
int64_t dual_group_of(int64_t index_in_model, int64_t num_groups) {
  constexpr uint64_t golden = 0x9E3779B97F4A7C15;  // 2^64 / the golden ratio (Knuth, vol. 3, 6.4)
  const uint64_t spread = (static_cast<uint64_t>(index_in_model) * golden) >> 32;
  return static_cast<int64_t>(spread * static_cast<uint64_t>(num_groups) >> 32);
}

std::vector<QuinticPolynomial> newton_schulz_polynomials(NewtonSchulz kind, int64_t steps) {
  if (kind == NewtonSchulz::jordan) return {static_cast<size_t>(steps), jordan};
  std::vector<QuinticPolynomial> polynomials;
  for (int64_t step = 0; step < steps; ++step) {
    const bool is_last = step + 1 >= std::ssize(polar_express);
    polynomials.push_back(is_last ? polar_express.back() : with_safety_factor(polar_express[step]));
  }
  return polynomials;
}

double update_factor(UpdateScale scale, int64_t rows, int64_t columns) {
  const auto tall = static_cast<double>(rows), wide = static_cast<double>(columns);
  return scale == UpdateScale::original ? std::sqrt(std::max(1.0, tall / wide)) : 0.2 * std::sqrt(std::max(tall, wide));
}

double newton_schulz_flops(const std::vector<int64_t>& shape, int64_t steps) {
  COPUS_CHECK(shape.size() == 2, shape.size(), " dimensions");
  const auto [shorter, longer] = std::minmax({static_cast<double>(shape[0]), static_cast<double>(shape[1])});
  return static_cast<double>(steps) * (4 * shorter * shorter * longer + 2 * shorter * shorter * shorter);
}

}  // namespace copus
