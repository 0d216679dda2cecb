#include "copus/train/step/seconds_by_rank.h"

#include <gtest/gtest.h>

#include <vector>

#include "copus/comm/testing/rank_threads.h"

namespace copus {
namespace {

// Returns a rank's computing seconds in a step.
PartSeconds seconds_of(int64_t rank, int64_t step) {
  const auto number = static_cast<double>(100 * rank + step);
  return {number, number + 0.1, number + 0.2};
}

StepSeconds expected_step(int64_t step, int64_t ranks) {
  StepSeconds expected{step, {}};
  for (int64_t rank = 0; rank < ranks; ++rank) expected.by_rank.push_back(seconds_of(rank, step));
  return expected;
}

TEST(SecondsByRank, RankZeroHasEveryStepOfEveryRankLater) {
  for (const int64_t ranks : {1, 2, 3, 4, 5, 7, 8}) {
    run_ranks_as_threads(ranks, [&](World& world) {
      SecondsByRank seconds;
      std::vector<StepSeconds> taken, expected;
      for (int64_t step = 1; step <= 2 * straggler_window + 2; ++step) {
        seconds.add(step, seconds_of(world.rank(), step), world);
        const std::vector<StepSeconds> now = seconds.take();
        const bool is_gathered = world.rank() == 0 && step % straggler_window == 0;
        EXPECT_EQ(std::ssize(now), is_gathered ? straggler_window : 0) << "rank " << world.rank() << ", step " << step;
        taken.insert(taken.end(), now.begin(), now.end());
        if (world.rank() == 0) expected.push_back(expected_step(step, ranks));
      }
      seconds.gather(world);  // the last two steps
      seconds.gather(world);  // nothing is left
      const std::vector<StepSeconds> rest = seconds.take();
      taken.insert(taken.end(), rest.begin(), rest.end());
      EXPECT_EQ(taken, expected) << "rank " << world.rank();
    });
  }
}

}  // namespace
}  // namespace copus
