// Measures the efficiency of batches from short branches of a run. Branches start from one checkpoint with different
// batches and learning rates and end at different losses. The branches of the reference batch, over several lengths,
// form a ladder. The ladder converts the loss of any other branch into the number of samples with which the reference
// batch reaches that loss. This number, divided by the samples that the branch read, is the measured efficiency. The
// calibration c in B_c = c phi and the exponent of the rate's factor are fitted to the efficiencies. Batches and
// lengths are in samples.
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
  // The efficiency at the ladder's end, of branches whose loss is beyond a ladder without a diverged rung.
  std::vector<BranchEfficiency> bounds;
  int outside = 0;  // branches without a value: those with a bound, and those where a loss diverged
};

// Builds the ladders from the rungs with a finite loss, and interpolates linearly in the logarithm of the samples.
BranchEfficiencies branch_efficiencies(const std::vector<BranchOutcome>& outcomes, double reference_batch);

// A value with its 95 % interval. An end of the interval may be the end of the searched range.
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
  double deviation = 0;  // root mean square of the residuals of ln SE, with the given alpha
};

// Returns the standard deviation of ln c that the interval implies. An end of the interval that is also an end of the
// searched range is not used. Empty if this excludes both ends, or if c itself is an end of the range: then c is only
// bounded.
std::optional<double> log_deviation(const Estimate& calibration);

// The point at which the branches leave the run.
struct BranchPoint {
  double noise_scale = 0;       // phi there
  double consumed_samples = 0;  // n
  double updates = 0;           // k of CriticalBatchRule, not fitted
};

// Fits ln SE = -ln((B_c + B) / (B_c + B_ref)) + 2 alpha ln r by least squares, over the branches with rate exponent
// 1/2. B_c follows from c, phi, k and n (critical_batch in efficiency.h). r = sqrt(B / B_ref) is the learning-rate
// factor of the branches. Each parameter's interval holds the values whose sum of squares is not significantly larger
// than the smallest sum (F-test). Empty with fewer than three such branches, or if all have the reference batch.
std::optional<BranchCalibration> fit_calibration(const BranchEfficiencies& efficiencies, double reference_batch,
                                                 const BranchPoint& point, double alpha);

// Finds the exponent of the rate's factor whose branches are most efficient. An exponent's efficiency is the mean over
// the batches and repetitions that all exponents have. The interval holds the tried exponents that are not
// significantly worse (paired t-test, 95 %). Empty with fewer than two pairs to compare.
std::optional<Estimate> best_rate_exponent(const BranchEfficiencies& efficiencies);

// A critical batch as the branches of one larger batch show it.
struct BranchCriticalBatch {
  double value = 0;      // in samples
  double deviation = 0;  // standard deviation of its logarithm
};

// Standard deviation of the difference between ln SE from the branches of one repetition and ln SE from whole runs. Its
// root mean squares were 0.15 and 0.23 on the two models of bench/efficiency/sandwich.md. Half of the variance is
// assumed to be common to all repetitions.
inline constexpr double branch_error = 0.19;

// Returns the mean and the standard deviation of ln B_c after the branches of batch B, where
//   SE(B) = (B_c + B_ref) / (B_c + B) r^(2 alpha) (McCandlish et al. 2018, arXiv 1812.06162)
// and r is the branch's factor on the learning rate.
// SE is the geometric mean over `repetitions`, each with one such branch. Before the branches, ln B_c is normal around
// ln `expected`, with the standard deviation deviation_of_calibration (efficiency_belief.h). So branches that only
// bound B_c count as well: all critical batches far below B_ref have SE = B_ref / B, all far above B have SE = 1. A
// bound counts as if it were the value, although the value lies beyond it; this pulls the mean a little inwards. Empty
// if a branch has neither a value nor a bound.
std::optional<BranchCriticalBatch> critical_batch_of(const BranchEfficiencies& efficiencies, double batch,
                                                     double reference_batch, int64_t repetitions, double expected,
                                                     double alpha);

}  // namespace copus
