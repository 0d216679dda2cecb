// The branches of `copus calibrate`. Their order makes any first part of them as informative as its length allows.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/statistics/branch_calibration.h"

namespace copus {

struct CalibrationPlan {
  std::vector<BranchOutcome> branches;  // with no losses yet
  int64_t needed = 0;                   // number of branches below which there is no interval
  int64_t largest_batch_samples = 0;    // samples of a branch of the largest batch

  // The total samples of the branches first .. first + count.
  double samples_of(int64_t first, int64_t count) const;
};

// Plans branches for batches up to 8 times the reference batch. Each has at least 32 updates, the minimum for an
// optimizer's averages. Let kappa = batch / reference batch. Each repetition has a ladder of the reference batch and,
// for each larger batch, branches at the rate factors kappa^(1/2), kappa^(1/4) and 1. The ladders and the kappa^(1/2)
// branches of the first two repetitions come first, because they are needed.
CalibrationPlan plan_calibration(int64_t reference_batch, int64_t repetitions);

// The number of samples between a checkpoint's position and a repetition's first sample. Repetitions share no samples
// while an epoch has enough samples for all of them.
int64_t skipped_samples(const CalibrationPlan& plan, int64_t repetition);

}  // namespace copus
