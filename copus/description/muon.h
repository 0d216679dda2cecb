// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon), without tensors: its settings, polynomials and
// cost. Muon replaces the momentum of a hidden matrix by a nearby matrix whose singular values are about 1.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "copus/base/named_values.h"
#include "copus/description/model_description.h"
#include "copus/description/precision.h"

namespace copus {

// The polynomials of the Newton-Schulz iteration:
// - jordan: the same polynomial in every iteration. It maps singular values into about [0.7, 1.2] (Jordan et al. 2024).
// - polar_express: a polynomial for each iteration, which brings singular values closer to 1 (Amsel et al. 2025,
//   arXiv 2505.16932, appendix A, with its safety factor).
enum class NewtonSchulz { jordan, polar_express };
template <>
inline constexpr auto named_values<NewtonSchulz> = std::to_array<NamedValue<NewtonSchulz>>(
    {{NewtonSchulz::jordan, "jordan"}, {NewtonSchulz::polar_express, "polar_express"}});

// The factor on the orthogonal matrix of an update, for a weight of shape [rows, columns]:
// - match_rms_adamw: 0.2 sqrt(max(rows, columns)). An update then has about the size of AdamW's, so that AdamW's
//   learning rate carries over (Liu et al. 2025, arXiv 2502.16982).
// - original: sqrt(max(1, rows / columns)) (Jordan et al. 2024).
enum class UpdateScale { match_rms_adamw, original };
template <>
inline constexpr auto named_values<UpdateScale> = std::to_array<NamedValue<UpdateScale>>(
    {{UpdateScale::match_rms_adamw, "match_rms_adamw"}, {UpdateScale::original, "original"}});

struct MuonSettings {
  double momentum = 0.95;
  bool nesterov = true;
  NewtonSchulz newton_schulz = NewtonSchulz::jordan;
  int64_t newton_schulz_steps = 5;
  Precision newton_schulz_precision = Precision::automatic;  // automatic: the run's precision
  UpdateScale update_scale = UpdateScale::match_rms_adamw;
  double adamw_lr_ratio = 1;  // learning rate of AdamW (for all parameters but hidden matrices) / learning rate of Muon
  bool operator==(const MuonSettings&) const = default;
};

// Returns whether Muon updates a parameter: only weights of linear layers within decoder layers. AdamW updates
// embeddings, head, norms and biases.
inline bool is_hidden_matrix(const ParameterInfo& parameter) {
  return parameter.kind == ParameterKind::linear && parameter.layer >= 0;
}

// Noise in dual norms is measured on one group of hidden matrices after the other. Returns the number of groups: one
// for each 16 matrices of the model, at least one.
int64_t num_dual_groups(const ModelDescription& model);
// Returns the group of the hidden matrix with this index among those of the model.
int64_t dual_group_of(int64_t index_in_model, int64_t num_groups);

// The map x -> a x + b x^3 + c x^5 of singular values.
struct QuinticPolynomial {
  double a, b, c;
};

// Lists the polynomials of `steps` iterations, in order.
std::vector<QuinticPolynomial> newton_schulz_polynomials(NewtonSchulz kind, int64_t steps);

double update_factor(UpdateScale scale, int64_t rows, int64_t columns);

// Returns the floating-point operations of `steps` iterations on a matrix of this shape. An iteration multiplies [m, n]
// by [n, m], [m, m] by [m, m], and [m, m] by [m, n], where m <= n are the two dimensions.
double newton_schulz_flops(const std::vector<int64_t>& shape, int64_t steps);

}  // namespace copus
