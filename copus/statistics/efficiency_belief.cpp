#include "copus/statistics/efficiency_belief.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/philox.h"

namespace copus {

namespace {

constexpr double tokens_at_center = 1e9;  // n_0
constexpr double noise_at_center = 3e5;   // phi_0

// The order of the parameters in a Vector, which holds the logarithm of the power so that the power stays positive.
enum Parameter { level, by_tokens, by_noise, log_power, rate_slope, dimensions };
using Vector = std::array<double, dimensions>;
using Matrix = std::array<Vector, dimensions>;

// One hypothesis: independent normal distributions of the parameters.
struct PriorComponent {
  Vector mean, deviation;
};

// The prior has two halves, because publications disagree: in one half the critical batch depends on the tokens read,
// in the other on the noise scale. (Merrill et al. 2025, arXiv 2505.23971, find the noise scale orders of magnitude too
// small.) docs/decisions/statistics.md derives the numbers:
// - By tokens: 1.0e6 tokens after 1e9 tokens, growing with n^0.50. Four laws agree on this: Kaplan et al. 2020 (arXiv
//   2001.08361), Zhang et al. 2024 (arXiv 2410.21676), Bergsma et al. 2025 (arXiv 2505.13738) and Merrill et al. 2025.
// - By noise: 1.42 times the noise scale (McCandlish et al. 2018, arXiv 1812.06162, table 1).
// - Power 1 and rate slope 0: the hyperbola at its best rate (McCandlish et al. 2018, equations 2.6 and 2.7). The paper
//   gives no deviations for power and rate slope; we chose them.
const std::array<PriorComponent, 2> prior = {
    {{.mean = {std::log(1.0e6), 0.50, 0, 0, 0}, .deviation = {1.0, 0.15, 0.15, 0.2, 0.3}},
     {.mean = {std::log(1.42 * noise_at_center), 0, 1, 0, 0},
      .deviation = {deviation_of_calibration, 0.15, 0.15, 0.2, 0.3}}}};

// The standard deviation of ln B_c at one moment around the run's law. We chose it.
constexpr double scatter_within_run = 0.2;

constexpr size_t proposals_of_component = 4096;
constexpr size_t kept = 512;

EfficiencyLaw law_of(const Vector& at) {
  return {at[level], at[by_tokens], at[by_noise], std::exp(at[log_power]), at[rate_slope]};
}

// A measurement compared with a law: the measured minus the predicted value, the derivative of the prediction with
// respect to ln B_c, and the variance of the difference.
struct Row {
  double residual = 0;
  double slope = 0;
  double variance = 1;
  double by_log_power = 0, by_rate_slope = 0;  // derivatives of the prediction
};

// All rows of one moment of a run share `offset`, the deviation of ln B_c from the law at that moment. Its standard
// deviation is scatter_within_run.
std::vector<Row> rows_of(const BranchPointEvidence& point, const EfficiencyLaw& law, double offset) {
  std::vector<Row> rows;
  const double critical = law.critical_batch(point.moment) * std::exp(offset), reference = point.reference_batch;
  const double at_reference = law.log_worth(reference, critical, 1);
  for (const MeasuredBranch& branch : point.branches) {
    const double worth = law.log_worth(branch.batch, critical, branch.rate_factor) - at_reference;
    const double log_rate = std::log(branch.rate_factor);
    rows.push_back(
        {.residual = branch.log_efficiency - worth,
         .slope = law.power * (branch.batch / (critical + branch.batch) - reference / (critical + reference)),
         .variance = branch.deviation * branch.deviation,
         .by_log_power = worth - law.rate_slope * log_rate,
         .by_rate_slope = log_rate});
  }
  return rows;
}

std::vector<Row> rows_of(const CriticalBatchEvidence& evidence, const EfficiencyLaw& law, double offset) {
  return {{.residual = std::log(evidence.critical_batch / law.critical_batch(evidence.moment)) - offset,
           .slope = 1,
           .variance = evidence.deviation * evidence.deviation}};
}

// How well a law fits the evidence of one moment.
struct MomentFit {
  double misfit = 0;           // squared residuals and squared offset, each divided by its variance
  double log_determinant = 0;  // of the covariance of the residuals, less that without scatter
  Vector gradient{};           // J^T C^-1 e: minus half of the misfit's, J the slopes by the parameters
  Matrix information{};        // J^T C^-1 J, with C = diag(variance) + scatter^2 g g^T and g the slopes by ln B_c
};

// Finds the most probable offset by Gauss-Newton steps, and integrates the likelihood over the offset. The integral is
// exact if the residuals are linear in the offset, as for a critical batch. Otherwise it is the integral of the normal
// distribution with the same peak and curvature (Laplace).
template <class Evidence>
MomentFit fit_moment(const Evidence& evidence, const EfficiencyLaw& law) {
  constexpr int most_steps = 20;
  constexpr double precision = 1e-6, longest_step = 2;  // the latter in units of the scatter
  constexpr double scatter = scatter_within_run;
  double offset = 0, weight = 0;
  std::vector<Row> rows;
  for (int step = 0; step < most_steps; ++step) {
    rows = rows_of(evidence, law, offset);
    double pull = -offset / (scatter * scatter);
    weight = 0;
    for (const Row& row : rows) {
      pull += row.slope * row.residual / row.variance;
      weight += row.slope * row.slope / row.variance;
    }
    const double change = pull / (weight + 1 / (scatter * scatter));
    if (std::abs(change) < precision) break;
    if (step + 1 < most_steps) offset += std::clamp(change, -longest_step * scatter, longest_step * scatter);
  }
  MomentFit fit;
  const double growth = 1 + scatter * scatter * weight;
  fit.misfit = offset * offset / (scatter * scatter);
  fit.log_determinant = std::log(growth);
  const double log_tokens = std::log(evidence.moment.tokens / tokens_at_center);
  const double log_noise = std::log(evidence.moment.noise_scale / noise_at_center);
  Vector shared{};  // sums of g J / variance
  for (const Row& row : rows) {
    const Vector slopes = {row.slope, row.slope * log_tokens, row.slope * log_noise, row.by_log_power,
                           row.by_rate_slope};
    fit.misfit += row.residual * row.residual / row.variance;
    for (size_t i = 0; i < dimensions; ++i) {
      shared[i] += row.slope * slopes[i] / row.variance;
      fit.gradient[i] += slopes[i] * row.residual / row.variance;
      for (size_t j = 0; j < dimensions; ++j) fit.information[i][j] += slopes[i] * slopes[j] / row.variance;
    }
  }
  // The inverse of C by the formula of Sherman and Morrison.
  for (size_t i = 0; i < dimensions; ++i) {
    for (size_t j = 0; j < dimensions; ++j) {
      fit.information[i][j] -= scatter * scatter / growth * shared[i] * shared[j];
    }
  }
  return fit;
}

std::vector<MomentFit> fit_all(const EfficiencyEvidence& evidence, const Vector& at) {
  const EfficiencyLaw law = law_of(at);
  std::vector<MomentFit> fits;
  for (const BranchPointEvidence& point : evidence.branch_points) fits.push_back(fit_moment(point, law));
  for (const CriticalBatchEvidence& other : evidence.critical_batches) fits.push_back(fit_moment(other, law));
  return fits;
}

double log_likelihood(const EfficiencyEvidence& evidence, const Vector& at) {
  double sum = 0;
  for (const MomentFit& fit : fit_all(evidence, at)) sum -= (fit.misfit + fit.log_determinant) / 2;
  return sum;
}

// Log densities omit the factor (2 pi)^(-dimensions / 2).
double log_density(const PriorComponent& component, const Vector& at) {
  double sum = 0;
  for (size_t i = 0; i < dimensions; ++i) {
    const double distance = (at[i] - component.mean[i]) / component.deviation[i];
    sum -= distance * distance / 2 + std::log(component.deviation[i]);
  }
  return sum;
}

// ln((e^a + e^b) / 2).
double log_mean(double a, double b) { return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b))) - std::log(2.0); }

double log_prior(const Vector& at) { return log_mean(log_density(prior[0], at), log_density(prior[1], at)); }

// Returns the lower triangle L with L L^T = matrix, for a positive definite matrix.
Matrix cholesky(const Matrix& matrix) {
  Matrix lower{};
  for (size_t i = 0; i < dimensions; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double rest = matrix[i][j];
      for (size_t k = 0; k < j; ++k) rest -= lower[i][k] * lower[j][k];
      COPUS_CHECK(i != j || rest > 0, "no positive definite matrix: ", rest, " in row ", i);
      lower[i][j] = i == j ? std::sqrt(rest) : rest / lower[j][j];
    }
  }
  return lower;
}

// Solves L x = y.
Vector solve_lower(const Matrix& lower, Vector y) {
  for (size_t i = 0; i < dimensions; ++i) {
    for (size_t k = 0; k < i; ++k) y[i] -= lower[i][k] * y[k];
    y[i] /= lower[i][i];
  }
  return y;
}

// Solves L^T x = y.
Vector solve_upper(const Matrix& lower, Vector y) {
  for (size_t i = dimensions; i-- > 0;) {
    for (size_t k = i + 1; k < dimensions; ++k) y[i] -= lower[k][i] * y[k];
    y[i] /= lower[i][i];
  }
  return y;
}

// A component's posterior near its mode: the mode, and L of the information L L^T there.
struct Peak {
  Vector mode{};
  Matrix lower{};
};

// Finds the mode by damped Gauss-Newton steps from the prior's mean. Only the proposal distribution depends on the
// mode. If the search stops early, the weighted draws still follow the posterior, but fewer of them are effective.
Peak peak_of(const PriorComponent& component, const EfficiencyEvidence& evidence) {
  constexpr int most_steps = 50;
  constexpr double least_improvement = 1e-9;
  const auto misfit = [&](const Vector& at) {
    double sum = -2 * log_density(component, at);
    for (const MomentFit& fit : fit_all(evidence, at)) sum += fit.misfit;
    return sum;
  };
  Peak peak{.mode = component.mean, .lower = {}};
  double least = misfit(peak.mode);
  for (int step = 0; step < most_steps; ++step) {
    Vector gradient{};
    Matrix information{};
    for (size_t i = 0; i < dimensions; ++i) {
      const double precision = 1 / (component.deviation[i] * component.deviation[i]);
      gradient[i] = (component.mean[i] - peak.mode[i]) * precision;
      information[i][i] = precision;
    }
    for (const MomentFit& fit : fit_all(evidence, peak.mode)) {
      for (size_t i = 0; i < dimensions; ++i) {
        gradient[i] += fit.gradient[i];
        for (size_t j = 0; j < dimensions; ++j) information[i][j] += fit.information[i][j];
      }
    }
    peak.lower = cholesky(information);
    const Vector direction = solve_upper(peak.lower, solve_lower(peak.lower, gradient));
    std::optional<Vector> better;
    for (double length = 1; !better && length > 1e-4; length /= 2) {
      Vector next = peak.mode;
      for (size_t i = 0; i < dimensions; ++i) next[i] += length * direction[i];
      if (const double misfit_there = misfit(next); misfit_there < least - least_improvement) {
        better = next;
        least = misfit_there;
      }
    }
    if (!better) break;
    peak.mode = *better;
  }
  return peak;
}

// Proposals follow Student's t with this many degrees of freedom: its tails are heavier than the posterior's.
constexpr int proposal_freedom = 5;

// Returns the logarithm of the proposal density around a peak, without a factor that all peaks share.
double log_proposal(const Peak& peak, const Vector& at) {
  double log_root = 0, square = 0;
  for (size_t j = 0; j < dimensions; ++j) {
    double along = 0;
    for (size_t i = j; i < dimensions; ++i) along += peak.lower[i][j] * (at[i] - peak.mode[i]);
    square += along * along;
    log_root += std::log(peak.lower[j][j]);
  }
  return log_root - (proposal_freedom + dimensions) / 2.0 * std::log1p(square / proposal_freedom);
}

Vector propose(const Peak& peak, uint64_t key, size_t number) {
  constexpr size_t deviates = dimensions + proposal_freedom;
  Vector at;
  double chi_squared = 0;
  for (size_t i = 0; i < deviates; ++i) {
    const double deviate = standard_normal(key, number * deviates + i);
    if (i < dimensions) {
      at[i] = deviate;
    } else {
      chi_squared += deviate * deviate;
    }
  }
  at = solve_upper(peak.lower, at);
  for (size_t i = 0; i < dimensions; ++i) at[i] = peak.mode[i] + at[i] * std::sqrt(proposal_freedom / chi_squared);
  return at;
}

struct WeightedVector {
  Vector at;
  double weight;
};

std::vector<WeightedVector> weighted_draws(const EfficiencyEvidence& evidence, uint64_t seed) {
  const std::array<Peak, 2> peaks = {peak_of(prior[0], evidence), peak_of(prior[1], evidence)};
  std::vector<WeightedVector> draws;
  const uint64_t key = stream_key(seed, "efficiency belief");
  for (const Peak& peak : peaks) {
    for (size_t i = 0; i < proposals_of_component; ++i) {
      const Vector at = propose(peak, key, draws.size());
      const double proposal = log_mean(log_proposal(peaks[0], at), log_proposal(peaks[1], at));
      draws.push_back({at, log_prior(at) + log_likelihood(evidence, at) - proposal});
    }
  }
  const auto largest = std::max_element(draws.begin(), draws.end(), [](const auto& a, const auto& b) {
                         return a.weight < b.weight;
                       })->weight;
  for (WeightedVector& draw : draws) draw.weight = std::exp(draw.weight - largest);
  return draws;
}

// Sets the noise scale to the value at the prior's centre, where the evidence has no influence on by_noise.
EfficiencyEvidence without_noise_scale(std::vector<CriticalBatchEvidence> critical_batches) {
  for (CriticalBatchEvidence& evidence : critical_batches) evidence.moment.noise_scale = noise_at_center;
  return {.branch_points = {}, .critical_batches = std::move(critical_batches)};
}

bool is_positive(double value) { return value > 0 && std::isfinite(value); }

void check(const TrainingMoment& moment) {
  COPUS_CHECK(is_positive(moment.tokens) && is_positive(moment.noise_scale), moment.tokens, ", ", moment.noise_scale);
}

void check(const EfficiencyEvidence& evidence) {
  for (const BranchPointEvidence& point : evidence.branch_points) {
    check(point.moment);
    COPUS_CHECK(is_positive(point.reference_batch), point.reference_batch);
    for (const MeasuredBranch& branch : point.branches) {
      COPUS_CHECK(is_positive(branch.batch) && is_positive(branch.rate_factor) && is_positive(branch.deviation) &&
                      std::isfinite(branch.log_efficiency),
                  branch.batch, ", ", branch.rate_factor, ", ", branch.deviation, ", ", branch.log_efficiency);
    }
  }
  for (const CriticalBatchEvidence& other : evidence.critical_batches) {
    check(other.moment);
    COPUS_CHECK(is_positive(other.critical_batch) && is_positive(other.deviation), other.critical_batch, ", ",
                other.deviation);
  }
}

}  // namespace

double EfficiencyLaw::critical_batch(const TrainingMoment& moment) const {
  return std::exp(level + by_tokens * std::log(moment.tokens / tokens_at_center) +
                  by_noise * std::log(moment.noise_scale / noise_at_center));
}

double EfficiencyLaw::log_worth(double batch, double critical_batch, double rate_factor) const {
  return -power * std::log1p(batch / critical_batch) + rate_slope * std::log(rate_factor);
}

EfficiencyBelief believe(const EfficiencyEvidence& evidence, uint64_t seed) {
  check(evidence);
  const std::vector<WeightedVector> draws = weighted_draws(evidence, seed);
  double sum = 0, squares = 0;
  for (const WeightedVector& draw : draws) {
    sum += draw.weight;
    squares += draw.weight * draw.weight;
  }
  EfficiencyBelief belief;
  belief.effective_draws = sum * sum / squares;
  // Systematic resampling: equally spaced points in the cumulative weights.
  const uint64_t key = stream_key(seed, "efficiency scatter");
  double reached = 0;
  for (const WeightedVector& draw : draws) {
    reached += draw.weight;
    while (belief.laws.size() < kept &&
           (static_cast<double>(belief.laws.size()) + 0.5) / static_cast<double>(kept) * sum <= reached) {
      EfficiencyLaw law = law_of(draw.at);
      law.level += scatter_within_run * standard_normal(key, belief.laws.size());
      belief.laws.push_back(law);
    }
  }
  COPUS_CHECK(belief.laws.size() == kept, belief.laws.size());
  return belief;
}

EfficiencyLaw expected_law(const std::vector<CriticalBatchEvidence>& critical_batches) {
  const EfficiencyEvidence evidence{.branch_points = {}, .critical_batches = critical_batches};
  check(evidence);
  std::array<Vector, 2> modes;
  std::array<double, 2> log_weights;
  for (size_t half = 0; half < prior.size(); ++half) {
    const Peak peak = peak_of(prior[half], evidence);
    double log_root = 0;  // of the determinant of the information
    for (size_t i = 0; i < dimensions; ++i) log_root += std::log(peak.lower[i][i]);
    modes[half] = peak.mode;
    log_weights[half] = log_density(prior[half], peak.mode) + log_likelihood(evidence, peak.mode) - log_root;
  }
  const double share = 1 / (1 + std::exp(log_weights[1] - log_weights[0]));
  const auto mean = [&](Parameter parameter) {
    return share * modes[0][parameter] + (1 - share) * modes[1][parameter];
  };
  if (mean(by_noise) >= 0) return {.level = mean(level), .by_tokens = mean(by_tokens), .by_noise = mean(by_noise)};
  // Few measurements can by accident show a critical batch that falls as the noise rises.
  const Peak peak = peak_of(prior.front(), without_noise_scale(critical_batches));
  return {.level = peak.mode[level], .by_tokens = peak.mode[by_tokens], .by_noise = 0};
}

std::vector<EfficiencyLaw> laws_by_tokens(std::vector<CriticalBatchEvidence> critical_batches, uint64_t seed) {
  const EfficiencyEvidence evidence = without_noise_scale(std::move(critical_batches));
  check(evidence);
  const Peak peak = peak_of(prior.front(), evidence);
  const uint64_t key = stream_key(seed, "laws by tokens");
  std::vector<EfficiencyLaw> laws;
  for (size_t number = 0; number < kept; ++number) {
    Vector at;
    for (size_t i = 0; i < dimensions; ++i) at[i] = standard_normal(key, number * dimensions + i);
    at = solve_upper(peak.lower, at);
    for (size_t i = 0; i < dimensions; ++i) at[i] += peak.mode[i];
    at[by_noise] = 0;
    laws.push_back(law_of(at));
  }
  return laws;
}

}  // namespace copus
