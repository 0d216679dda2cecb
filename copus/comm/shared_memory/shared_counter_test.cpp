#include "copus/comm/shared_memory/shared_counter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace copus {
namespace {

TEST(SharedCounter, reaches_targets_across_its_wrap) {
  SharedCounter counter{};
  EXPECT_TRUE(counter.reached(0));
  EXPECT_FALSE(counter.reached(1));
  EXPECT_TRUE(counter.reached(std::numeric_limits<uint32_t>::max()));
  counter.publish(std::numeric_limits<uint32_t>::max());
  EXPECT_FALSE(counter.reached(2));
  counter.publish(2);
  EXPECT_TRUE(counter.reached(2));
  EXPECT_TRUE(counter.reached(std::numeric_limits<uint32_t>::max()));
}

// Two threads that always sleep immediately, so that a lost wake-up would cost a whole sleep time.
TEST(SharedCounter, loses_no_wake_up) {
  constexpr uint32_t turns = 1000;
  constexpr double sleep_seconds = 0.9;
  SharedCounter here{};
  SharedCounter there{};
  const auto begin = std::chrono::steady_clock::now();
  std::thread other([&] {
    for (uint32_t turn = 1; turn <= turns; ++turn) {
      while (!here.reached(turn)) here.sleep(turn, sleep_seconds);
      there.publish(turn);
    }
  });
  for (uint32_t turn = 1; turn <= turns; ++turn) {
    here.publish(turn);
    while (!there.reached(turn)) there.sleep(turn, sleep_seconds);
  }
  other.join();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(taken.count(), 0.05 * turns * sleep_seconds) << "far more than a loaded machine needs";
}

class NotingHealth : public Health {
 public:
  void set_place(std::string_view /*place*/) override {}
  void set_expected_step_seconds(double /*seconds*/) override {}
  void begin_wait() override { notes += "begin "; }
  void end_wait() override { notes += "end "; }
  void report(const FailureReport& report) override { failure_ = report; }
  std::optional<FailureReport> failure() const override { return failure_; }

  std::string notes;

 private:
  std::optional<FailureReport> failure_;
};

TEST(Wait, ends_at_its_deadline_and_counts_as_waiting_until_then) {
  NotingHealth health;
  const WaitPolicy policy = wait_policy(health, 0.01, 1'000'000);
  EXPECT_EQ(policy.spin.count(), 0) << "ranks outnumber the cores";
  SharedCounter counter{};
  EXPECT_FALSE(Wait(policy).until(counter, 1));
  EXPECT_EQ(health.notes, "begin end ");
  counter.publish(1);
  EXPECT_TRUE(Wait(policy).until(counter, 1));
  EXPECT_EQ(health.notes, "begin end ") << "nothing to wait for";
}

// Simulates a process that is stopped during its wait, for longer than the deadline. Then the awaited value arrives.
class StoppingHealth : public NotingHealth {
 public:
  explicit StoppingHealth(SharedCounter& awaited) : awaited_(awaited) {}
  std::optional<FailureReport> failure() const override {
    ++looks_;
    if (looks_ == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    if (looks_ > 2) awaited_.publish(1);
    return std::nullopt;
  }

 private:
  SharedCounter& awaited_;
  mutable int looks_ = 0;
};

TEST(Wait, does_not_count_the_time_for_which_its_process_was_stopped) {
  SharedCounter counter{};
  StoppingHealth health(counter);
  const WaitPolicy policy = wait_policy(health, 1, 1'000'000);
  EXPECT_TRUE(Wait(policy).until(counter, 1));
}

TEST(Wait, throws_once_the_job_has_failed) {
  NotingHealth health;
  const WaitPolicy policy = wait_policy(health, 600, 1);
  health.report({0, "step 2", "out of memory"});
  SharedCounter counter{};
  EXPECT_THROW(Wait(policy).until(counter, 1), RankFailure);
  counter.publish(1);
  EXPECT_THROW(Wait(policy).until(counter, 1), RankFailure) << "nobody has to be waited for";
}

}  // namespace
}  // namespace copus
