#include "copus/comm/health/rank_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace copus {
namespace {

using testing::HasSubstr;

constexpr int64_t num_ranks = 3;

// Three ranks with simulated processes and simulated time. Every rank's process number is its rank.
class RankMonitorTest : public testing::Test {
 protected:
  RankMonitorTest() {
    for (int64_t rank = 0; rank <= num_ranks; ++rank) {
      ranks_.push_back(std::make_unique<SharedHealth>(memory_.front().bytes, rank, num_ranks));
    }
  }

  SharedHealth& rank(int64_t rank) { return *ranks_[rank]; }

  void beat(int64_t number) {
    rank(number).beat();
    rank(num_ranks).set_process(number, number + 1);
  }

  RankMonitor monitor(RankMonitor::Role role = RankMonitor::Role::rank) {
    const auto state = [this](int64_t pid) {
      const auto found = states_.find(pid - 1);
      return found == states_.end() ? ProcessState::running : found->second;
    };
    return {rank(num_ranks), role, HealthLimits{}, state, [this](int64_t pid) { return starved_.contains(pid - 1); }};
  }

  // Checks ten times per second while only `beating` ranks send heartbeats. Returns the failure; passed_ is the time
  // until it was found.
  std::optional<FailureReport> look_for(RankMonitor& monitor, double seconds, const std::vector<int64_t>& beating) {
    for (passed_ = 0; passed_ < seconds; passed_ += 0.1) {
      for (const int64_t number : beating) beat(number);
      if (auto found = monitor.look(0.1)) return found;
    }
    return std::nullopt;
  }

  std::map<int64_t, ProcessState> states_;
  std::set<int64_t> starved_;  // these processes wait for a processor
  double passed_ = 0;

 private:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::vector<Line> memory_ = std::vector<Line>((health_bytes(num_ranks) + 63) / 64);
  std::vector<std::unique_ptr<SharedHealth>> ranks_;
};

TEST_F(RankMonitorTest, HealthyRanksAreLeftAlone) {
  RankMonitor all = monitor();
  EXPECT_FALSE(look_for(all, 100, {0, 1, 2}));
}

TEST_F(RankMonitorTest, NamesARankWithoutHeartbeat) {
  RankMonitor all = monitor();
  rank(1).set_place("step 7, forward");
  EXPECT_FALSE(look_for(all, 10, {0, 1, 2}));
  const auto found = look_for(all, 10, {0, 2});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->place, "step 7, forward");
  EXPECT_EQ(found->cause, "no heartbeat for 3 s");
  EXPECT_NEAR(passed_, 3, 0.25);
}

TEST_F(RankMonitorTest, ARankThatWaitsForAProcessorIsNotSilent) {
  for (const auto role : {RankMonitor::Role::rank, RankMonitor::Role::parent}) {
    RankMonitor all = monitor(role);
    starved_ = {1};
    EXPECT_FALSE(look_for(all, 5, {0, 1, 2}));
    EXPECT_FALSE(look_for(all, 20, {0, 2}));
    states_[1] = ProcessState::stopped;
    EXPECT_EQ(look_for(all, 5, {0, 2}).value_or(FailureReport{}).cause, "stopped (SIGSTOP)");
    states_.clear();
    starved_.clear();
    EXPECT_EQ(look_for(all, 5, {0, 2}).value_or(FailureReport{}).cause, "no heartbeat for 3 s");
  }
}

TEST_F(RankMonitorTest, AHeartbeatThatComesWhileARankIsLookedAtCounts) {
  RankMonitor all(
      rank(num_ranks), RankMonitor::Role::parent, HealthLimits{}, [](int64_t) { return ProcessState::running; },
      [this](int64_t pid) {
        beat(pid - 1);
        return false;
      });
  EXPECT_FALSE(look_for(all, 1, {0, 1, 2}));
  EXPECT_FALSE(look_for(all, 10, {0, 2}));
}

TEST_F(RankMonitorTest, NamesAStoppedRank) {
  RankMonitor all = monitor();
  EXPECT_FALSE(look_for(all, 1, {0, 1, 2}));
  states_[2] = ProcessState::stopped;
  const auto found = look_for(all, 10, {0, 1});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->cause, "stopped (SIGSTOP)");
  EXPECT_NEAR(passed_, 2, 0.25);
}

TEST_F(RankMonitorTest, ABriefStopIsNoFailure) {
  RankMonitor all = monitor();
  for (int i = 0; i < 5; ++i) {
    states_[2] = ProcessState::stopped;
    EXPECT_FALSE(look_for(all, 1.5, {0, 1}));
    states_.clear();
    EXPECT_FALSE(look_for(all, 0.3, {0, 1, 2}));
  }
}

TEST_F(RankMonitorTest, SilenceWhileTheObserverItselfWasStoppedSaysNothing) {
  RankMonitor all = monitor();
  EXPECT_FALSE(look_for(all, 1, {0, 1, 2}));
  EXPECT_FALSE(all.look(3600));
  EXPECT_FALSE(look_for(all, 1, {0, 1, 2}));
}

TEST_F(RankMonitorTest, NamesARankWhoseProcessIsGoneAtOnce) {
  RankMonitor all = monitor();
  EXPECT_FALSE(look_for(all, 1, {0, 1, 2}));
  states_[0] = ProcessState::gone;
  const auto found = look_for(all, 1, {1, 2});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 0);
  EXPECT_THAT(found->cause, HasSubstr("process ended"));
  EXPECT_LT(passed_, 0.25);
}

TEST_F(RankMonitorTest, TheEndOfAProcessIsForItsLauncherToJudge) {
  rank(num_ranks).become_launcher();
  RankMonitor launcher = monitor(RankMonitor::Role::parent);
  EXPECT_FALSE(look_for(launcher, 1, {0, 1, 2}));
  states_[0] = ProcessState::gone;
  EXPECT_FALSE(look_for(launcher, 10, {1, 2}));
}

TEST_F(RankMonitorTest, ALauncherThatDoesNotJudgeAnEndInTimeIsNotWaitedFor) {
  rank(num_ranks).become_launcher();
  RankMonitor all = monitor();
  EXPECT_FALSE(look_for(all, 1, {0, 1, 2}));
  states_[0] = ProcessState::gone;
  const auto found = look_for(all, 10, {1, 2});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 0);
  EXPECT_EQ(found->cause, "no heartbeat for 3 s");
  EXPECT_NEAR(passed_, 3, 0.25);
}

TEST_F(RankMonitorTest, ARankThatHasLeftMayEnd) {
  RankMonitor all = monitor();
  EXPECT_FALSE(look_for(all, 1, {0, 1, 2}));
  rank(0).leave();
  EXPECT_FALSE(look_for(all, 5, {1, 2}));
  states_[0] = ProcessState::gone;
  EXPECT_FALSE(look_for(all, 5, {1, 2}));
}

TEST_F(RankMonitorTest, ALauncherSeesStopsBeforeTheFirstHeartbeatAndAfterTheLast) {
  RankMonitor launcher = monitor(RankMonitor::Role::parent);
  for (int64_t number = 0; number < num_ranks; ++number) rank(num_ranks).set_process(number, number + 1);
  EXPECT_FALSE(look_for(launcher, 100, {})) << "ranks take their time to start";
  states_[1] = ProcessState::stopped;
  const auto early = look_for(launcher, 10, {});
  ASSERT_TRUE(early);
  EXPECT_EQ(early->rank, 1);
  EXPECT_EQ(early->cause, "stopped (SIGSTOP)");

  states_.clear();
  EXPECT_FALSE(look_for(launcher, 1, {0, 1, 2}));
  rank(2).leave();
  EXPECT_FALSE(look_for(launcher, 100, {0, 1}));
  states_[2] = ProcessState::stopped;
  const auto late = look_for(launcher, 10, {0, 1});
  ASSERT_TRUE(late);
  EXPECT_EQ(late->rank, 2);
  launcher.forget(2);
  EXPECT_FALSE(look_for(launcher, 10, {0, 1}));
}

TEST_F(RankMonitorTest, NamesARankWithoutProgress) {
  RankMonitor all = monitor();
  for (int64_t number = 0; number < num_ranks; ++number) rank(number).set_expected_step_seconds(6);
  rank(0).begin_wait();
  rank(2).begin_wait();
  rank(1).set_place("step 7, backward of micro-batch 3");
  const auto found = look_for(all, 100, {0, 1, 2});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->place, "step 7, backward of micro-batch 3");
  EXPECT_EQ(found->cause, "stalled: made no progress for 60 s");
  EXPECT_NEAR(passed_, 60, 0.25);
}

TEST_F(RankMonitorTest, ShortStepsHaveAtLeastTenSeconds) {
  RankMonitor all = monitor();
  rank(1).set_expected_step_seconds(0.01);
  EXPECT_TRUE(look_for(all, 100, {0, 1, 2}));
  EXPECT_NEAR(passed_, 10, 0.25);
}

TEST_F(RankMonitorTest, PlacesAndWaitsAreProgress) {
  RankMonitor all = monitor();
  rank(1).set_expected_step_seconds(1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(look_for(all, 9, {0, 1, 2}));
    rank(1).set_place("step " + std::to_string(i));
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(look_for(all, 9, {0, 1, 2}));
    rank(1).begin_wait();
    rank(1).end_wait();
  }
  rank(1).begin_wait();
  EXPECT_FALSE(look_for(all, 100, {0, 1, 2})) << "it waits for ranks of which nothing is expected";
  rank(1).end_wait();
  EXPECT_FALSE(look_for(all, 9, {0, 1, 2}));
  rank(1).set_expected_step_seconds(0);
  EXPECT_FALSE(look_for(all, 100, {0, 1, 2})) << "a checkpoint takes as long as it takes";
}

TEST_F(RankMonitorTest, NoticesThatAllWaitForOneAnother) {
  RankMonitor all = monitor();
  for (int64_t number = 0; number < num_ranks; ++number) {
    rank(number).set_expected_step_seconds(2);
    rank(number).begin_wait();
  }
  const auto found = look_for(all, 100, {0, 1, 2});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, -1);
  EXPECT_THAT(to_string(*found), HasSubstr("all ranks wait for one another and made no progress for 20 s"));
  EXPECT_NEAR(passed_, 20, 0.25);
}

TEST_F(RankMonitorTest, ShortWaitsOfAllAreNoDeadlock) {
  RankMonitor all = monitor();
  for (int64_t number = 0; number < num_ranks; ++number) {
    rank(number).set_expected_step_seconds(1);
    rank(number).begin_wait();
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(look_for(all, 8, {0, 1, 2}));
    rank(i % num_ranks).end_wait();  // and begins the next wait at once
    rank(i % num_ranks).begin_wait();
  }
}

}  // namespace
}  // namespace copus
