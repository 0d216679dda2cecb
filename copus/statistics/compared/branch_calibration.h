// What short branches of a run tell about the worth of a batch. Branches leave one checkpoint with different batches
// and learning rates and end at different losses. Those of the reference batch over several lengths are a ladder, which
// turns every other loss into the samples of the reference batch that would have done as much. Their ratio to what the
// branch read is its efficiency, measured; the calibration c in B_c = c phi and the exponent of the rate's factor are
// fitted to it. Batches and lengths are in samples.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace copus {

// The end of one branch.
struct BranchOutcome {
  double batch = 0;
  double rate_exponent = 0;  // e in the rate's factor (batch / reference batch)^e
  double samples = 0;        // read since the checkpoint
  int64_t repetition = 0;    // branches are compared with the ladder of their own repetition
  double loss = 0;           // held-out
};

// The measured efficiency of one branch.
struct BranchEfficiency {
  double batch = 0;
  double rate_exponent = 0;
  int64_t repetition = 0;
  double logarithm = 0;  // ln(equivalent samples of the reference batch / samples read)
};

struct BranchEfficiencies {
  std::vector<BranchEfficiency> values;
  int outside = 0;  // branches whose loss lies beyond their ladder: nothing is known of them
};

// Reads the ladders, of the rungs whose loss is finite: linear in the logarithm of the samples between two rungs.
BranchEfficiencies branch_efficiencies(const std::vector<BranchOutcome>& outcomes, double reference_batch);

// A value with the ends of its 95 % interval, which may be the ends of the range that was searched.
struct Estimate {
  double value = 0, low = 0, high = 0;

  bool operator==(const Estimate&) const = default;
};

// The range in which c is searched.
constexpr double smallest_calibration = 1.0 / 64, largest_calibration = 256;

struct BranchCalibration {
  Estimate calibration;       // c, with the exponent alpha as given
  Estimate free_calibration;  // c and alpha, fitted together
  Estimate free_alpha;
  double deviation = 0;  // root mean square of what the fit with the given alpha leaves of ln SE
};

// Returns the standard deviation of ln c that the interval stands for. An end of the searched range is no end of the
// interval, so the other end alone counts there. Empty if c or both ends are at ends of the range: c is only bounded.
std::optional<double> log_deviation(const Estimate& calibration);

// Where branches leave a run.
struct BranchPoint {
  double noise_scale = 0;       // phi there
  double consumed_samples = 0;  // n
  double updates = 0;           // k of CriticalBatchRule, which is taken as given
};

// Fits ln SE = -ln((B_c + B) / (B_c + B_ref)) + 2 alpha ln r, with B_c by c, phi, k and n (critical_batch) and r =
// sqrt(B / B_ref) the factor that the branches trained with, by least squares over the branches of rate exponent 1/2.
// The intervals hold the values at which the sum of squares is not significantly larger than at the best (F-test).
// Empty with fewer than three such branches, or where all have the reference batch.
std::optional<BranchCalibration> fit_calibration(const BranchEfficiencies& efficiencies, double reference_batch,
                                                 const BranchPoint& point, double alpha);

// Finds the exponent of the rate's factor whose branches are most efficient, on average over batches and repetitions
// that all exponents have; the interval holds those exponents tried that are not significantly worse (paired t-test,
// 95 %). Empty where fewer than two pairs can be compared.
std::optional<Estimate> best_rate_exponent(const BranchEfficiencies& efficiencies);

}  // namespace copus
