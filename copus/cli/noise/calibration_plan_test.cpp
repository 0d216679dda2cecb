#include "copus/cli/noise/calibration_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

namespace copus {
namespace {

TEST(CalibrationPlan, NoBranchHasFewerThan32UpdatesAndEachRunsOnce) {
  const CalibrationPlan plan = plan_calibration(6, 4);
  std::set<std::tuple<double, double, double, int64_t>> seen;
  for (const BranchOutcome& branch : plan.branches) {
    EXPECT_GE(branch.samples / branch.batch, 32);
    EXPECT_EQ(static_cast<int64_t>(branch.samples) % static_cast<int64_t>(branch.batch), 0);
    EXPECT_TRUE(seen.insert({branch.batch, branch.rate_exponent, branch.samples, branch.repetition}).second);
  }
  EXPECT_EQ(std::ssize(plan.branches), 4 * (5 + 3 + 6));
}

// However many of the branches after the needed ones run, each branch comes after its repetition's ladder (the branches
// in the reference batch with which it is compared).
TEST(CalibrationPlan, TheLadderComesFirst) {
  const CalibrationPlan plan = plan_calibration(8, 3);
  std::map<int64_t, int> rungs;
  for (const BranchOutcome& branch : plan.branches) {
    if (branch.batch == 8) {
      ++rungs[branch.repetition];
    } else {
      EXPECT_EQ(rungs[branch.repetition], 5);
    }
  }
  BranchEfficiencies needed;
  for (int64_t i = 0; i < plan.needed; ++i) {
    const BranchOutcome& branch = plan.branches[static_cast<size_t>(i)];
    if (branch.batch != 8) needed.values.push_back({branch.batch, branch.rate_exponent, branch.repetition, -0.1});
  }
  EXPECT_TRUE(fit_calibration(needed, 8, {.noise_scale = 30}, 0));
}

TEST(CalibrationPlan, RepetitionsShareNoSamples) {
  const CalibrationPlan plan = plan_calibration(8, 2);
  for (const BranchOutcome& branch : plan.branches) {
    EXPECT_LE(branch.samples, static_cast<double>(skipped_samples(plan, 1) - skipped_samples(plan, 0)));
  }
}

}  // namespace
}  // namespace copus
