#include "copus/statistics/branch_calibration.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "copus/base/error.h"
#include "copus/statistics/efficiency.h"
#include "copus/statistics/efficiency_belief.h"
#include "copus/statistics/student_t.h"

namespace copus {

namespace {

constexpr double square_root_rule = 0.5;

// The grid of the fit: the number of c, spaced geometrically, then the range and the number of alpha.
constexpr int calibration_steps = 560;
constexpr double smallest_alpha = -1, largest_alpha = 1.5;
constexpr int alpha_steps = 500;

using Ladder = std::map<double, double>;  // loss by samples

std::optional<double> equivalent_samples(const Ladder& ladder, double loss) {
  if (!std::isfinite(loss)) return std::nullopt;
  for (auto few = ladder.begin(); few != ladder.end() && std::next(few) != ladder.end(); ++few) {
    const auto many = std::next(few);
    if (loss > few->second || loss < many->second) continue;
    const double share = few->second > many->second ? (few->second - loss) / (few->second - many->second) : 0;
    return few->first * std::pow(many->first / few->first, share);
  }
  return std::nullopt;
}

// Returns the samples of the end of the ladder beyond which the loss is.
double samples_at_end(const Ladder& ladder, double loss) {
  return loss > ladder.begin()->second ? ladder.begin()->first : ladder.rbegin()->first;
}

// One data point of the fit, which explains ln SE by the batch.
struct Point {
  double batch, logarithm;
};

// Sums of squared residuals over a grid of c. For each c the sum is a parabola in alpha:
//   square - 2 alpha product + alpha^2 rates.
class Fit {
 public:
  Fit(const std::vector<Point>& points, double reference_batch, const BranchPoint& from) : count_(points.size()) {
    for (const Point& point : points) rates_ += std::pow(rate(point, reference_batch), 2);
    for (int step = 0; step <= calibration_steps; ++step) {
      Row row;
      row.calibration = smallest_calibration * std::pow(largest_calibration / smallest_calibration,
                                                        static_cast<double>(step) / calibration_steps);
      const double critical = critical_batch({row.calibration, from.updates}, from.noise_scale, from.consumed_samples);
      for (const Point& point : points) {
        const double rest = point.logarithm - std::log(statistical_efficiency(point.batch, critical, reference_batch));
        row.square += rest * rest;
        row.product += rest * rate(point, reference_batch);
      }
      rows_.push_back(row);
    }
  }

  // Fits c with this alpha; also returns the remaining sum of squares.
  std::pair<Estimate, double> calibration_with(double alpha) const {
    return over_calibrations([&](const Row& row) { return sum_of_squares(row, alpha); }, 1);
  }

  // Fits c and alpha together; returns c.
  Estimate free_calibration() const {
    return over_calibrations([&](const Row& row) { return sum_of_squares(row, best_alpha(row)); }, 2).first;
  }

  // Fits c and alpha together; returns alpha.
  Estimate free_alpha() const {
    const auto sum = [&](const Row& row) { return sum_of_squares(row, best_alpha(row)); };
    const Row& best =
        *std::min_element(rows_.begin(), rows_.end(), [&](const Row& a, const Row& b) { return sum(a) < sum(b); });
    const double limit = bound(sum(best), 2);
    Estimate estimate{best_alpha(best), best_alpha(best), best_alpha(best)};
    for (int step = 0; step <= alpha_steps; ++step) {
      const double alpha = smallest_alpha + (largest_alpha - smallest_alpha) * step / alpha_steps;
      const bool is_inside =
          std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) { return sum_of_squares(row, alpha) <= limit; });
      if (is_inside) widen(estimate, alpha);
    }
    return estimate;
  }

 private:
  struct Row {
    double calibration = 0, square = 0, product = 0;
  };

  // ln r^2.
  static double rate(const Point& point, double reference_batch) { return std::log(point.batch / reference_batch); }

  double sum_of_squares(const Row& row, double alpha) const {
    return row.square - 2 * alpha * row.product + alpha * alpha * rates_;
  }
  double best_alpha(const Row& row) const { return std::clamp(row.product / rates_, smallest_alpha, largest_alpha); }

  // Returns the largest sum of squares of values inside the interval, when the fit has this many `constants`.
  double bound(double least, int constants) const {
    const double free = static_cast<double>(count_) - constants;
    const double t = student_t_quantile(0.975, free);
    return least * (1 + t * t / free);
  }

  static void widen(Estimate& estimate, double value) {
    estimate.low = std::min(estimate.low, value);
    estimate.high = std::max(estimate.high, value);
  }

  template <class Sum>
  std::pair<Estimate, double> over_calibrations(const Sum& sum, int constants) const {
    const Row& best =
        *std::min_element(rows_.begin(), rows_.end(), [&](const Row& a, const Row& b) { return sum(a) < sum(b); });
    Estimate estimate{best.calibration, best.calibration, best.calibration};
    const double limit = bound(sum(best), constants);
    for (const Row& row : rows_) {
      if (sum(row) <= limit) widen(estimate, row.calibration);
    }
    return {estimate, sum(best)};
  }

  std::vector<Row> rows_;
  double rates_ = 0;
  size_t count_;
};

}  // namespace

BranchEfficiencies branch_efficiencies(const std::vector<BranchOutcome>& outcomes, double reference_batch) {
  std::map<int64_t, Ladder> ladders;
  std::set<int64_t> incomplete;  // repetitions in which a rung has diverged
  for (const BranchOutcome& outcome : outcomes) {
    if (outcome.batch != reference_batch) continue;
    if (std::isfinite(outcome.loss)) {
      ladders[outcome.repetition][outcome.samples] = outcome.loss;
    } else {
      incomplete.insert(outcome.repetition);
    }
  }
  BranchEfficiencies efficiencies;
  for (const BranchOutcome& outcome : outcomes) {
    if (outcome.batch == reference_batch) continue;
    BranchEfficiency branch{outcome.batch, outcome.rate_exponent, outcome.repetition};
    const Ladder& ladder = ladders[outcome.repetition];
    if (const auto equivalent = equivalent_samples(ladder, outcome.loss)) {
      branch.logarithm = std::log(*equivalent / outcome.samples);
      efficiencies.values.push_back(branch);
      continue;
    }
    ++efficiencies.outside;
    if (ladder.empty() || incomplete.contains(outcome.repetition) || !std::isfinite(outcome.loss)) continue;
    branch.logarithm = std::log(samples_at_end(ladder, outcome.loss) / outcome.samples);
    efficiencies.bounds.push_back(branch);
  }
  return efficiencies;
}

std::optional<BranchCalibration> fit_calibration(const BranchEfficiencies& efficiencies, double reference_batch,
                                                 const BranchPoint& point, double alpha) {
  COPUS_CHECK(reference_batch > 0 && point.noise_scale > 0, reference_batch, ", ", point.noise_scale);
  std::vector<Point> points;
  for (const BranchEfficiency& value : efficiencies.values) {
    if (value.rate_exponent == square_root_rule) points.push_back({value.batch, value.logarithm});
  }
  if (points.size() < 3) return std::nullopt;
  const Fit fit(points, reference_batch, point);
  const auto [calibration, least] = fit.calibration_with(alpha);
  return BranchCalibration{.calibration = calibration,
                           .free_calibration = fit.free_calibration(),
                           .free_alpha = fit.free_alpha(),
                           .deviation = std::sqrt(std::max(0.0, least) / static_cast<double>(points.size()))};
}

std::optional<double> log_deviation(const Estimate& calibration) {
  constexpr double deviations_of_half = 1.96;  // of a 95 % interval
  const auto is_open = [](double end) { return end <= smallest_calibration || end >= largest_calibration; };
  const auto [value, low, high] = calibration;
  if (is_open(value) || (is_open(low) && is_open(high))) return std::nullopt;
  const double below = std::log(value / low), above = std::log(high / value);
  return (is_open(low) ? above : is_open(high) ? below : (below + above) / 2) / deviations_of_half;
}

std::optional<Estimate> best_rate_exponent(const BranchEfficiencies& efficiencies) {
  std::map<std::pair<double, int64_t>, std::map<double, double>> by_branch;  // batch, repetition: ln SE by exponent
  std::set<double> exponents;
  for (const BranchEfficiency& value : efficiencies.values) {
    by_branch[{value.batch, value.repetition}][value.rate_exponent] = value.logarithm;
    exponents.insert(value.rate_exponent);
  }
  std::erase_if(by_branch, [&](const auto& branch) { return branch.second.size() < exponents.size(); });
  if (by_branch.size() < 2 || exponents.size() < 2) return std::nullopt;
  const auto count = static_cast<double>(by_branch.size());
  const auto mean_difference = [&](double one, double other) {
    double sum = 0;
    for (const auto& [branch, values] : by_branch) sum += values.at(one) - values.at(other);
    return sum / count;
  };
  const double best = *std::max_element(exponents.begin(), exponents.end(),
                                        [&](double a, double b) { return mean_difference(a, b) < 0; });
  const auto is_worse = [&](double exponent) {
    const double mean = mean_difference(best, exponent);
    double squares = 0;
    for (const auto& [branch, values] : by_branch) {
      squares += std::pow(values.at(best) - values.at(exponent) - mean, 2);
    }
    return mean > student_t_quantile(0.975, count - 1) * std::sqrt(squares / (count - 1) / count);
  };
  Estimate estimate{best, best, best};
  for (const double exponent : exponents) {
    if (exponent == best || is_worse(exponent)) continue;
    estimate.low = std::min(estimate.low, exponent);
    estimate.high = std::max(estimate.high, exponent);
  }
  return estimate;
}

std::optional<BranchCriticalBatch> critical_batch_of(const BranchEfficiencies& efficiencies, double batch,
                                                     double reference_batch, int64_t repetitions, double expected,
                                                     double alpha) {
  COPUS_CHECK(batch > reference_batch && reference_batch > 0 && repetitions > 0 && expected > 0, batch, ", ",
              reference_batch, ", ", expected);
  double sum = 0;
  int64_t count = 0;
  for (const auto* const all : {&efficiencies.values, &efficiencies.bounds}) {
    for (const BranchEfficiency& one : *all) {
      if (one.batch != batch) continue;
      sum += one.logarithm - 2 * alpha * one.rate_exponent * std::log(batch / reference_batch);
      ++count;
    }
  }
  if (count < repetitions) return std::nullopt;
  constexpr double common = 0.5, own = 0.5;  // shares of the variance
  const double measured = sum / static_cast<double>(count);
  const double error = branch_error * std::sqrt(common + own / static_cast<double>(count));
  // Sums over a grid of ln B_c, in deviations of the prior.
  constexpr int steps = 640;
  constexpr double widest = 8;
  double weights = 0, first = 0, second = 0;
  for (int step = 0; step <= steps; ++step) {
    const double distance = widest * (2.0 * step / steps - 1);
    const double critical = expected * std::exp(distance * deviation_of_calibration);
    const double residual = (measured - std::log((critical + reference_batch) / (critical + batch))) / error;
    const double weight = std::exp(-(distance * distance + residual * residual) / 2);
    weights += weight;
    first += weight * distance;
    second += weight * distance * distance;
  }
  const double mean = first / weights;
  return BranchCriticalBatch{expected * std::exp(mean * deviation_of_calibration),
                             std::sqrt(second / weights - mean * mean) * deviation_of_calibration};
}

}  // namespace copus
