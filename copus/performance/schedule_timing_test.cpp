#include "copus/performance/testing/schedule_timing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "copus/base/error.h"
#include "copus/schedule/testing/schedule_test_support.h"

namespace copus {
namespace {

// Times a schedule of equal stages. `rank_seconds`: of all chunks of a rank together.
ScheduleTiming time_equal_stages(const Schedule& schedule, const StageSeconds& rank_seconds) {
  const auto v = static_cast<double>(schedule.virtual_stages);
  const StageSeconds stage{rank_seconds.forward / v, rank_seconds.backward_input / v, rank_seconds.backward_weight / v,
                           rank_seconds.send};
  return time_schedule(schedule, std::vector<StageSeconds>(schedule.num_stages(), stage));
}

TEST(Timing, BubblesAreThoseOfTheFormulas) {
  for (const StageSeconds& seconds : {StageSeconds{1, 1, 1, 0}, StageSeconds{1, 2, 1, 0}, StageSeconds{2, 3, 1.5, 0},
                                      StageSeconds{3, 1, 1, 0}, StageSeconds{1, 1, 2, 0}, StageSeconds{1, 4, 0, 0}}) {
    for_every_schedule([&](PipelineSchedule kind, const Schedule& schedule) {
      const double formula =
          bubble_formula(kind, schedule.pipeline_parallel, schedule.virtual_stages, schedule.num_microbatches,
                         seconds.forward, seconds.backward_input, seconds.backward_weight);
      EXPECT_NEAR(time_equal_stages(schedule, seconds).bubble(), formula, 1e-12)
          << seconds.forward << " " << seconds.backward_input << " " << seconds.backward_weight;
    });
  }
}

TEST(Timing, FormulasAreTheKnownNumbers) {
  EXPECT_DOUBLE_EQ(bubble_formula(PipelineSchedule::gpipe, 4, 1, 8, 1, 1, 1), 3.0 / 11);
  EXPECT_DOUBLE_EQ(bubble_formula(PipelineSchedule::one_f_one_b, 4, 1, 8, 1, 1, 1), 3.0 / 11);
  EXPECT_DOUBLE_EQ(bubble_formula(PipelineSchedule::interleaved_1f1b, 4, 2, 8, 1, 1, 1), 3.0 / 19);
  // With F = B = W the bubble is a third of 1F1B's idle time: 3 of 27 seconds instead of 9 of 33.
  EXPECT_DOUBLE_EQ(bubble_formula(PipelineSchedule::zb_h1, 4, 1, 8, 1, 1, 1), 3.0 / 27);
}

// Computed by hand: two stages, two micro-batches, F = 2, B = 3, W = 1, messages of 10.
TEST(Timing, MessagesTakeTimeAndFollowOneAnother) {
  const auto timing =
      time_schedule(make_schedule(PipelineSchedule::one_f_one_b, 2, 1, 2), {{2, 3, 1, 10}, {2, 3, 1, 10}});
  const auto at = [&](int64_t rank, const Action& action) {
    for (const TimedAction& timed : timing.ranks[rank]) {
      if (timed.action == action) return std::pair{timed.begin, timed.end};
    }
    return std::pair{-1.0, -1.0};
  };
  using enum ActionKind;
  EXPECT_EQ(at(0, {send_activation, 0, 0}), std::pair(2.0, 12.0));
  EXPECT_EQ(at(0, {send_activation, 0, 1}), std::pair(4.0, 22.0));  // departs when the first message has arrived
  EXPECT_EQ(at(1, {receive_activation, 0, 0}), std::pair(0.0, 12.0));
  EXPECT_EQ(at(1, {forward, 0, 0}), std::pair(12.0, 14.0));
  EXPECT_EQ(at(1, {backward_weight, 0, 0}), std::pair(17.0, 18.0));
  EXPECT_EQ(at(1, {send_gradient, 0, 0}), std::pair(18.0, 28.0));
  EXPECT_EQ(at(1, {receive_activation, 0, 1}), std::pair(18.0, 22.0));
  EXPECT_EQ(at(1, {send_gradient, 0, 1}), std::pair(28.0, 38.0));
  EXPECT_EQ(at(0, {backward_input, 0, 0}), std::pair(28.0, 31.0));
  EXPECT_EQ(at(0, {backward_weight, 0, 1}), std::pair(41.0, 42.0));
  EXPECT_EQ(timing.seconds, 42);
  EXPECT_EQ(timing.busy_seconds, (std::vector<double>{12, 12}));
  EXPECT_DOUBLE_EQ(timing.bubble(), 1 - 24.0 / 84);
}

TEST(Timing, StagesCountWithTheirOwnSeconds) {
  const auto timing = time_schedule(make_schedule(PipelineSchedule::gpipe, 2, 1, 3), {{1, 2, 0, 0}, {5, 7, 1, 0}});
  EXPECT_EQ(timing.seconds, 1 + 3 * 5 + 3 * 8 + 2);
  EXPECT_EQ(timing.busy_seconds, (std::vector<double>{9, 39}));
}

TEST(Timing, ADeadlockIsOurMistake) {
  auto schedule = make_schedule(PipelineSchedule::one_f_one_b, 2, 1, 1);
  std::rotate(schedule.ranks[0].begin(), schedule.ranks[0].begin() + 2, schedule.ranks[0].end());
  EXPECT_THROW(time_schedule(schedule, {{1, 1, 1, 0}, {1, 1, 1, 0}}), InternalError);
}

}  // namespace
}  // namespace copus
