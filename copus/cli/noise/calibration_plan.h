// Plans the branches of `copus calibrate`: short runs from a checkpoint. They are ordered so that a calibration may
// stop after any branch with a result that is as precise as possible.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/statistics/branch_calibration.h"

namespace copus {

struct CalibrationPlan {
  std::vector<BranchOutcome> branches;  // losses are not measured yet
  int64_t needed = 0;                   // with fewer branches there is no confidence interval
  int64_t largest_batch_samples = 0;    // samples of a branch of the largest batch

  // The total samples of `count` branches, beginning with branch `first`.
  double samples_of(int64_t first, int64_t count) const;
};

// Plans branches for batches up to 8 times the reference batch. Each branch has at least 32 updates, the minimum for an
// optimizer's averages. Let kappa = batch / reference batch. Each repetition has a ladder, which measures the loss of
// the reference batch after different numbers of samples. For each larger batch it has three branches, with the
// learning rate scaled by kappa^(1/2), kappa^(1/4) and 1. The ladders and the kappa^(1/2) branches of the first two
// repetitions come first, because no interval can be computed without them.
CalibrationPlan plan_calibration(int64_t reference_batch, int64_t repetitions);

// Returns the number of samples between a checkpoint's position in the data and a repetition's first sample. If an
// epoch of the data is long enough, no two repetitions read the same samples.
int64_t skipped_samples(const CalibrationPlan& plan, int64_t repetition);

}  // namespace copus
