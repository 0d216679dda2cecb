#include "copus/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "copus/base/error.h"
#include "copus/schedule/testing/check_messages.h"
#include "copus/schedule/testing/check_schedule.h"
#include "copus/schedule/testing/message_times.h"
#include "copus/schedule/testing/schedule_test_support.h"

namespace copus {
namespace {

using enum ActionKind;
using testing::AllOf;
using testing::HasSubstr;

// Finds the only occurrence of `action` in a rank's list.
auto find_action(std::vector<Action>& actions, const Action& action) {
  const auto found = std::find(actions.begin(), actions.end(), action);
  EXPECT_NE(found, actions.end());
  return found;
}

std::string finding(const Schedule& schedule, const std::vector<int64_t>& bounds) {
  return check_schedule(schedule, bounds).value_or("nothing is wrong");
}

TEST(Schedule, EverySchedulePassesItsCheckWithinItsBound) {
  for_every_schedule([](PipelineSchedule kind, const Schedule& schedule) {
    EXPECT_EQ(finding(schedule, bounds_of(kind, schedule)), "nothing is wrong");
  });
}

// Schedules of large jobs, drawn at random because there are too many to test all.
TEST(Schedule, DrawnOnesOfLongPipelinesPassTheirCheckWithinTheirBound) {
  std::mt19937_64 random(3);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int trial = 0; trial < 60; ++trial) {
    const auto kinds = all_values<PipelineSchedule>();
    const PipelineSchedule kind = kinds[random() % kinds.size()];
    const bool interleaved = kind == PipelineSchedule::interleaved_1f1b;
    const int64_t p = draw(9, 24), v = interleaved ? draw(2, 7) : 1;
    const Schedule schedule = make_schedule(kind, p, v, interleaved ? p * draw(1, 3) : draw(1, 64));
    EXPECT_EQ(finding(schedule, bounds_of(kind, schedule)), "nothing is wrong")
        << to_string(kind) << " p=" << p << " v=" << v << " m=" << schedule.num_microbatches;
  }
}

TEST(Schedule, MessagesEndOnDevicesThatHoldThemUntilTheyAreReceived) {
  for_every_schedule([](PipelineSchedule, const Schedule& schedule) {
    EXPECT_TRUE(messages_end(schedule, {.messages_at_once = schedule.virtual_stages > 1 ? 2 : 1}));
  });
}

TEST(Schedule, MessagesOfNeighboursThatBothSendFirstHaveToBeJoined) {
  for (const auto kind : {PipelineSchedule::one_f_one_b, PipelineSchedule::zb_h1}) {
    EXPECT_FALSE(messages_end(make_schedule(kind, 4, 1, 8), {.messages_at_once = 16, .joins = false}));
  }
  EXPECT_FALSE(messages_end(make_schedule(PipelineSchedule::interleaved_1f1b, 4, 2, 8), {.messages_at_once = 1}));
}

TEST(Schedule, InterleavedReceivesStartOnePassEarly) {
  const std::vector<Action> expected = {
      {forward, 0, 0},
      {send_activation, 0, 0},  //
      {receive_activation, 1, 0},
      {forward, 0, 1},
      {send_activation, 0, 1},  //
      {receive_activation, 1, 1},
      {forward, 1, 0},
      {send_activation, 1, 0},  //
      {receive_gradient, 1, 0},
      {forward, 1, 1},
      {send_activation, 1, 1},  //
      {receive_gradient, 1, 1},
      {backward_input, 1, 0},
      {backward_weight, 1, 0},
      {send_gradient, 1, 0},  //
      {receive_gradient, 0, 0},
      {backward_input, 1, 1},
      {backward_weight, 1, 1},
      {send_gradient, 1, 1},  //
      {receive_gradient, 0, 1},
      {backward_input, 0, 0},
      {backward_weight, 0, 0},  //
      {backward_input, 0, 1},
      {backward_weight, 0, 1},
  };
  const Schedule schedule = make_schedule(PipelineSchedule::interleaved_1f1b, 2, 2, 2);
  EXPECT_EQ(in_order_of_start(schedule, 0), expected);
}

// The figures are given in docs/decisions/comm.md.
TEST(Schedule, StartingReceivesEarlySavesMessagesOfInterleavedSchedules) {
  using enum PipelineSchedule;
  const auto saved = [](PipelineSchedule kind, int64_t p, int64_t v, int64_t m, double message) {
    const Schedule schedule = make_schedule(kind, p, v, m);
    const ActionLists early = start_receives_early(schedule);
    for (int64_t rank = 0; v > 1 && rank < p; ++rank) EXPECT_EQ(in_order_of_start(schedule, rank), early[rank]);
    return 1 - step_time(schedule, early, message) / step_time(schedule, schedule.ranks, message);
  };
  EXPECT_NEAR(saved(interleaved_1f1b, 4, 2, 16, 0.01), 0.007, 5e-4);
  EXPECT_NEAR(saved(interleaved_1f1b, 4, 2, 16, 0.05), 0.035, 5e-4);
  EXPECT_NEAR(saved(interleaved_1f1b, 4, 4, 16, 0.01), 0.017, 5e-4);
  EXPECT_NEAR(saved(interleaved_1f1b, 4, 4, 16, 0.05), 0.080, 5e-4);
  EXPECT_NEAR(saved(gpipe, 8, 1, 32, 0.01), 0.005, 5e-4);
  EXPECT_NEAR(saved(gpipe, 8, 1, 32, 0.05), 0.026, 5e-4);
  EXPECT_NEAR(saved(zb_h1, 8, 1, 32, 0.01), 0.003, 5e-4);
  EXPECT_NEAR(saved(zb_h1, 8, 1, 32, 0.05), 0.014, 5e-4);
  EXPECT_EQ(saved(one_f_one_b, 8, 1, 32, 0.05), 0);
}

TEST(Schedule, OneChunkStartsItsActionsInTheOrderOfTheList) {
  for_every_schedule([](PipelineSchedule, const Schedule& schedule) {
    if (schedule.virtual_stages > 1) return;
    for (int64_t rank = 0; rank < schedule.pipeline_parallel; ++rank) {
      EXPECT_EQ(in_order_of_start(schedule, rank), schedule.ranks[rank]);
    }
  });
}

TEST(Schedule, EveryBoundIsReached) {
  for_every_schedule([](PipelineSchedule kind, const Schedule& schedule) {
    for (int64_t rank = 0; rank < schedule.pipeline_parallel; ++rank) {
      auto bounds = bounds_of(kind, schedule);
      --bounds[rank];
      EXPECT_THAT(finding(schedule, bounds), HasSubstr(concat("rank ", rank, " holds the activations of")));
    }
  });
}

TEST(Schedule, BoundsAreThoseOfTheLiterature) {
  for (const int64_t p : {1, 2, 4, 8}) {
    for (const int64_t m : {p, 2 * p, 5 * p}) {
      for (int64_t rank = 0; rank < p; ++rank) {
        const auto bound = [&](PipelineSchedule kind, int64_t v) {
          return activation_bound(kind, make_schedule(kind, p, v, m), rank);
        };
        EXPECT_EQ(bound(PipelineSchedule::gpipe, 1), m);
        EXPECT_EQ(bound(PipelineSchedule::one_f_one_b, 1), p - rank);
        EXPECT_EQ(bound(PipelineSchedule::zb_h1, 1), p - rank);
        if (p == 1) continue;
        EXPECT_EQ(bound(PipelineSchedule::interleaved_1f1b, 3), std::min(2 * (p - 1 - rank) + 2 * p + 1, 3 * m));
      }
    }
  }
}

TEST(Schedule, DelayedWeightGradientsStayWithinTheMemoryOfRankZero) {
  for_every_schedule([](PipelineSchedule kind, const Schedule& schedule) {
    if (kind != PipelineSchedule::zb_h1) return;
    for (const auto& actions : schedule.ranks) {
      int64_t held = 0;
      int64_t most = 0;
      for (const Action& action : actions) {
        if (action.kind == forward) most = std::max(most, ++held);
        if (action.kind == backward_weight) --held;
      }
      EXPECT_EQ(most, std::min(schedule.pipeline_parallel, schedule.num_microbatches));
    }
  });
}

TEST(Schedule, WeightGradientsOfTheOthersFollowTheirInputGradients) {
  for_every_schedule([](PipelineSchedule kind, const Schedule& schedule) {
    if (kind == PipelineSchedule::zb_h1) return;
    for (const auto& actions : schedule.ranks) {
      for (size_t i = 0; i < actions.size(); ++i) {
        if (actions[i].kind != backward_input) continue;
        EXPECT_EQ(actions[i + 1], (Action{backward_weight, actions[i].chunk, actions[i].micro_batch}));
      }
    }
  });
}

TEST(Schedule, OneRankOf1F1B) {
  const std::vector<Action> expected = {
      {forward, 0, 0},          {send_activation, 0, 0},                           //
      {forward, 0, 1},          {send_activation, 0, 1},                           //
      {receive_gradient, 0, 0}, {backward_input, 0, 0},  {backward_weight, 0, 0},  //
      {forward, 0, 2},          {send_activation, 0, 2},                           //
      {receive_gradient, 0, 1}, {backward_input, 0, 1},  {backward_weight, 0, 1},  //
      {receive_gradient, 0, 2}, {backward_input, 0, 2},  {backward_weight, 0, 2},
  };
  EXPECT_EQ(make_schedule(PipelineSchedule::one_f_one_b, 2, 1, 3).ranks[0], expected);
}

TEST(Schedule, TheLastRankOfZeroBubbleSendsBeforeItsDelayedWeightGradients) {
  const std::vector<Action> expected = {
      {receive_activation, 0, 0}, {forward, 0, 0},         {backward_input, 0, 0}, {send_gradient, 0, 0},  //
      {receive_activation, 0, 1}, {forward, 0, 1},         {backward_input, 0, 1}, {send_gradient, 0, 1},  //
      {backward_weight, 0, 0},                                                                             //
      {receive_activation, 0, 2}, {forward, 0, 2},         {backward_input, 0, 2}, {send_gradient, 0, 2},  //
      {backward_weight, 0, 1},    {backward_weight, 0, 2},
  };
  EXPECT_EQ(make_schedule(PipelineSchedule::zb_h1, 2, 1, 3).ranks[1], expected);
}

// The expected order is from Narayanan et al. 2021, figure 4: p = 4, m = 8, two chunks.
TEST(Schedule, InterleavedOrderIsMegatrons) {
  const auto schedule = make_schedule(PipelineSchedule::interleaved_1f1b, 4, 2, 8);
  const auto order_of = [&](int64_t rank, ActionKind kind) {
    std::string order;
    for (const Action& action : schedule.ranks[rank]) {
      if (action.kind == kind) order += concat(action.chunk, action.micro_batch, " ");
    }
    return order;
  };
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(order_of(rank, forward), "00 01 02 03 10 11 12 13 04 05 06 07 14 15 16 17 ");
    EXPECT_EQ(order_of(rank, backward_input), "10 11 12 13 00 01 02 03 14 15 16 17 04 05 06 07 ");
    const auto& actions = schedule.ranks[rank];
    const auto first_backward = std::find_if(actions.begin(), actions.end(),
                                             [](const Action& action) { return action.kind == backward_input; });
    EXPECT_EQ(
        std::count_if(actions.begin(), first_backward, [](const Action& action) { return action.kind == forward; }),
        2 * (3 - rank) + 4 + 1);
  }
}

// The expected orders are from PyTorch 2.13's ScheduleInterleaved1F1B: one round of six micro-batches on four ranks,
// and two rounds of five.
TEST(Schedule, LargerRoundsGoInTheOrderOfPyTorch) {
  const auto order_of = [](const Schedule& schedule, int64_t rank) {
    std::string order;
    for (const auto& [kind, chunk, micro_batch] : schedule.ranks[rank]) {
      if (kind == forward) order += concat("F", chunk, micro_batch, " ");
      if (kind == backward_input) order += concat("B", chunk, micro_batch, " ");
    }
    return order;
  };
  const Schedule one_round = make_schedule(PipelineSchedule::interleaved_1f1b, 4, 2, 6);
  EXPECT_EQ(order_of(one_round, 2),
            "F00 F01 F02 F03 F04 F05 F10 F11 F12 B10 F13 B11 F14 B12 F15 B13 B14 B15 B00 B01 B02 B03 B04 B05 ");
  const Schedule two_rounds = make_schedule(PipelineSchedule::interleaved_1f1b, 4, 2, 10);
  EXPECT_EQ(order_of(two_rounds, 3),
            "F00 F01 F02 F03 F04 F10 B10 F11 B11 F12 B12 F13 B13 F14 B14 F05 B00 F06 B01 F07 B02 F08 B03 F09 B04 "
            "F15 B15 F16 B16 F17 B17 F18 B18 F19 B19 B05 B06 B07 B08 B09 ");
}

// Copus itself does not run these schedules, but other programs do.
TEST(Schedule, EqualRoundsOfAnySizePassTheirCheckWithinTheirBound) {
  for (int64_t p = 2; p <= 8; ++p) {
    for (int64_t v = 2; v <= 3; ++v) {
      for (int64_t m = 1; m <= 40; ++m) {
        if (m % interleaved_rounds(m, p) != 0) continue;
        const Schedule schedule = make_schedule(PipelineSchedule::interleaved_1f1b, p, v, m);
        EXPECT_EQ(finding(schedule, bounds_of(PipelineSchedule::interleaved_1f1b, schedule)), "nothing is wrong")
            << "p=" << p << " v=" << v << " m=" << m;
      }
    }
  }
}

TEST(Schedule, BothEndsOfAMessageNameEachOther) {
  for_every_schedule([](PipelineSchedule, const Schedule& schedule) {
    for (int64_t rank = 0; rank < schedule.pipeline_parallel; ++rank) {
      for (const Action& action : schedule.ranks[rank]) {
        if (action.kind <= backward_weight) continue;
        const MessageEnd end = other_end(schedule, rank, action);
        EXPECT_EQ(other_end(schedule, end.rank, end.action), (MessageEnd{rank, action}));
      }
    }
  });
}

TEST(Schedule, ImpossibleOnesAreOurMistake) {
  EXPECT_THROW(make_schedule(PipelineSchedule::one_f_one_b, 2, 2, 4), InternalError);
  EXPECT_THROW(make_schedule(PipelineSchedule::interleaved_1f1b, 2, 2, 5), InternalError);
  EXPECT_THROW(make_schedule(PipelineSchedule::interleaved_1f1b, 1, 2, 3), InternalError);
  EXPECT_THROW(make_schedule(PipelineSchedule::interleaved_1f1b, 2, 1, 4), InternalError);
  EXPECT_THROW(make_schedule(PipelineSchedule::gpipe, 2, 1, 0), InternalError);
}

// Schedules with one fault each, which the check has to find.
class BrokenSchedule : public testing::Test {
 protected:
  std::string finding() const { return copus::check_schedule(schedule_, bounds_).value_or("nothing is wrong"); }

  Schedule schedule_ = make_schedule(PipelineSchedule::one_f_one_b, 3, 1, 4);
  std::vector<int64_t> bounds_ = bounds_of(PipelineSchedule::one_f_one_b, schedule_);
};

TEST_F(BrokenSchedule, MissesAWeightGradient) {
  schedule_.ranks[1].erase(find_action(schedule_.ranks[1], {backward_weight, 0, 2}));
  EXPECT_EQ(finding(), "rank 1 never does W of chunk 0, micro-batch 2");
}

TEST_F(BrokenSchedule, DoesAWeightGradientTwice) {
  schedule_.ranks[1].push_back({backward_weight, 0, 2});
  EXPECT_EQ(finding(), "rank 1 does W of chunk 0, micro-batch 2 twice");
}

TEST_F(BrokenSchedule, RunsAWeightGradientBeforeItsInputGradient) {
  auto& actions = schedule_.ranks[0];
  std::iter_swap(find_action(actions, {backward_input, 0, 1}), find_action(actions, {backward_weight, 0, 1}));
  EXPECT_EQ(finding(), "rank 0 does W of chunk 0, micro-batch 1 before its B of chunk 0, micro-batch 1");
}

TEST_F(BrokenSchedule, RunsABackwardBeforeItsForwardPass) {
  auto& actions = schedule_.ranks[2];
  std::iter_swap(find_action(actions, {forward, 0, 1}), find_action(actions, {backward_input, 0, 1}));
  EXPECT_EQ(finding(), "rank 2 does B of chunk 0, micro-batch 1 before its F of chunk 0, micro-batch 1");
}

TEST_F(BrokenSchedule, SumsWeightGradientsInAnotherOrder) {
  auto& actions = schedule_.ranks[0];
  actions.erase(find_action(actions, {backward_weight, 0, 1}));
  actions.push_back({backward_weight, 0, 1});
  EXPECT_EQ(finding(), "rank 0 does W of chunk 0, micro-batch 2 before its W of chunk 0, micro-batch 1");
}

TEST_F(BrokenSchedule, ReceivesWhatNobodySends) {
  schedule_.ranks[0].erase(find_action(schedule_.ranks[0], {send_activation, 0, 3}));
  EXPECT_EQ(finding(), "rank 0 never does send_activation of chunk 0, micro-batch 3");
}

TEST_F(BrokenSchedule, SendsToNobody) {
  schedule_.ranks[0].push_back({send_gradient, 0, 3});
  EXPECT_EQ(finding(), "rank 0 has no neighbour for its send_gradient of chunk 0, micro-batch 3");
}

TEST_F(BrokenSchedule, SendsWhatIsNotMadeYet) {
  auto& actions = schedule_.ranks[0];
  std::iter_swap(find_action(actions, {forward, 0, 0}), find_action(actions, {send_activation, 0, 0}));
  EXPECT_EQ(finding(), "rank 0 does send_activation of chunk 0, micro-batch 0 before its F of chunk 0, micro-batch 0");
}

TEST_F(BrokenSchedule, SwapsTheMessagesOfAPair) {
  auto& actions = schedule_.ranks[0];
  std::iter_swap(find_action(actions, {send_activation, 0, 0}), find_action(actions, {send_activation, 0, 1}));
  std::iter_swap(find_action(actions, {send_activation, 0, 1}), find_action(actions, {forward, 0, 1}));
  EXPECT_EQ(finding(),
            "rank 1 does receive_activation of chunk 0, micro-batch 0 where rank 0 has sent what its "
            "receive_activation of chunk 0, micro-batch 1 waits for: messages arrive in the order in which they were "
            "sent");
}

TEST_F(BrokenSchedule, WaitsInACircle) {
  auto& actions = schedule_.ranks[1];  // rank 1 waits for a gradient before it sends the activation
  actions.erase(find_action(actions, {receive_gradient, 0, 0}));
  actions.insert(actions.begin(), {receive_gradient, 0, 0});
  EXPECT_EQ(finding(),
            "deadlock: rank 0 waits in receive_gradient of chunk 0, micro-batch 0; rank 1 waits in receive_gradient of "
            "chunk 0, micro-batch 0; rank 2 waits in receive_activation of chunk 0, micro-batch 0");
}

TEST_F(BrokenSchedule, HoldsTooManyActivations) {
  schedule_ = make_schedule(PipelineSchedule::gpipe, 3, 1, 4);
  EXPECT_EQ(finding(),
            "rank 0 holds the activations of 4 micro-batches after F of chunk 0, micro-batch 3; its bound is 3");
}

TEST_F(BrokenSchedule, WorksOnWhatDoesNotExist) {
  schedule_.ranks[2].push_back({forward, 0, 4});
  EXPECT_EQ(finding(), "rank 2 does F of chunk 0, micro-batch 4, which does not exist");
}

// With two ranks and several chunks, activations and gradients travel in the same direction.
TEST_F(BrokenSchedule, TakesAGradientForAnActivation) {
  constexpr auto kind = PipelineSchedule::interleaved_1f1b;
  schedule_ = make_schedule(kind, 2, 2, 4);
  bounds_ = bounds_of(kind, schedule_);
  auto& actions = schedule_.ranks[0];  // the activation is produced first
  actions.erase(find_action(actions, {send_activation, 0, 3}));
  actions.insert(find_action(actions, {send_gradient, 1, 1}) + 1, {send_activation, 0, 3});
  EXPECT_THAT(finding(), AllOf(HasSubstr("receive_activation of chunk 0, micro-batch 3 where"),
                               HasSubstr("receive_gradient of chunk 0, micro-batch 1 waits"),
                               HasSubstr("messages arrive in the order in which they were sent")));
}

}  // namespace
}  // namespace copus
