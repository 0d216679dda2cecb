// The branches of `copus calibrate`, in the order in which they run: whenever it is stopped, those that have run say as
// much as their number can.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/statistics/compared/branch_calibration.h"

namespace copus {

struct CalibrationPlan {
  std::vector<BranchOutcome> branches;  // without their losses
  int64_t needed = 0;                   // so many are the least that an interval can be had from
  int64_t largest_batch_samples = 0;    // samples of a branch of the largest batch

  // Samples that the branches first .. first + count read, all together.
  double samples_of(int64_t first, int64_t count) const;
};

// Batches up to 8 times the reference batch, in branches of 32 updates at least, which is as few as an optimizer's
// averages allow; up to `repetitions` of the ladder with a branch of each batch at the rate kappa^(1/2),
// kappa = batch / reference batch, and as many of the rates 1 and kappa^(1/4). The first two repetitions of the former
// are needed.
CalibrationPlan plan_calibration(int64_t reference_batch, int64_t repetitions);

// The samples between a checkpoint's and the first of a repetition's branches, so that repetitions share
// none as long as an epoch has enough.
int64_t skipped_samples(const CalibrationPlan& plan, int64_t repetition);

}  // namespace copus
