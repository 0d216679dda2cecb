// Tests that an interrupted job gets the same advice as an uninterrupted one: from its logs, and from a state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "copus/adviser/testing/advised_job.h"
#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/report/logs/decision_replay.h"
#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int64_t interrupted_after = 150, steps = 400;

class AdviserRestartTest : public TestDirectory {
 protected:
  // Runs the uninterrupted job, and keeps the logs of its first steps and its state at that point.
  void SetUp() override {
    Adviser adviser(job_.settings(), {.directory = whole_});
    job_.train(adviser, interrupted_after, 16);
    batch_ = adviser.batch();
    state_ = adviser.state();
    noise_ = adviser.noise();
    fs::copy(whole_, cut_, fs::copy_options::recursive);
    job_.train(adviser, steps, adviser.batch());
  }

  fs::path copy_of_cut(const std::string& name) const {
    fs::copy(cut_, root_ / name, fs::copy_options::recursive);
    return root_ / name;
  }

  // The batch of each of the job's steps, which follows from all decisions.
  static std::vector<int64_t> batches(const fs::path& directory) {
    std::vector<int64_t> result;
    for (const StepRecord& record : read_run_log(directory / "run.jsonl")) result.push_back(record.global_batch);
    return result;
  }

  static std::map<int64_t, Decision> decisions(const fs::path& directory) {
    std::map<int64_t, Decision> result;
    for (const DecisionEvent& event : read_decision_log(directory / "decisions.jsonl")) {
      if (const auto* decision = std::get_if<Decision>(&event)) result[decision->step] = *decision;
    }
    return result;
  }

  static void expect_replays(const fs::path& directory) {
    const Replay result =
        replay(parse_advised_config(read_text_file(directory / "config.toml"), "config.toml"),
               read_run_log(directory / "run.jsonl"), read_decision_log(directory / "decisions.jsonl"));
    EXPECT_FALSE(result.difference) << result.difference->step << ": " << result.difference->what;
  }

  // Continues after the interruption with `batch_`, to which advice has brought the job.
  void go_on(Adviser& adviser) const {
    EXPECT_EQ(adviser.steps(), interrupted_after);
    job_.train(adviser, steps, batch_);
  }

  AdvisedJob job_{.spread = 0};
  const fs::path& root_ = directory_;
  fs::path whole_ = root_ / "whole", cut_ = root_ / "cut";
  int64_t batch_ = 0;
  std::string state_;
  std::optional<NoiseScale> noise_;
};

// The resumed process warms up, so it measures step times with other steps; its decisions are still the same.
TEST_F(AdviserRestartTest, AJobGoesOnFromItsLogsAsIfUninterrupted) {
  {
    Adviser adviser(job_.settings(), {.directory = cut_, .after_step = interrupted_after});
    EXPECT_EQ(adviser.noise()->value, noise_->value);
    EXPECT_EQ(adviser.noise()->low, noise_->low);
    go_on(adviser);
  }
  EXPECT_EQ(batches(cut_), batches(whole_));
  const std::map<int64_t, Decision> ours = decisions(cut_), theirs = decisions(whole_);
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [step, decision] : theirs) {
    ASSERT_TRUE(ours.contains(step)) << step;
    EXPECT_EQ(ours.at(step).choice.target, decision.choice.target) << step;
    EXPECT_EQ(ours.at(step).noise_scale, decision.noise_scale) << step;
    EXPECT_EQ(ours.at(step).rate_factor, decision.rate_factor) << step;
    EXPECT_NEAR(ours.at(step).choice.predicted_gain, decision.choice.predicted_gain, 1e-3) << step;
  }
  expect_replays(cut_);
}

// A killed process has trained steps after its last checkpoint. The resumed job repeats them.
TEST_F(AdviserRestartTest, LaterStepsAreCutAndDoneAgain) {
  const fs::path longer = copy_of_cut("longer");
  {
    Adviser adviser(job_.settings(), {.directory = longer, .after_step = interrupted_after});
    job_.train(adviser, interrupted_after + 70, batch_);
  }
  for (const fs::path& directory : {longer, cut_}) {
    Adviser adviser(job_.settings(), {.directory = directory, .after_step = interrupted_after});
    go_on(adviser);
  }
  EXPECT_EQ(read_text_file(longer / "run.jsonl"), read_text_file(cut_ / "run.jsonl"));
  expect_replays(longer);
}

TEST_F(AdviserRestartTest, StateAndLogsTogetherAreAsTheLogsAlone) {
  const fs::path with_state = copy_of_cut("with-state");
  {
    Adviser from_logs(job_.settings(), {.directory = cut_, .after_step = interrupted_after});
    Adviser from_both(job_.settings(), {.directory = with_state, .state = state_});
    EXPECT_EQ(from_logs.state(), from_both.state());
    go_on(from_logs);
    go_on(from_both);
  }
  for (const char* name : {"run.jsonl", "decisions.jsonl"}) {
    EXPECT_EQ(read_text_file(cut_ / name), read_text_file(with_state / name)) << name;
  }
}

// Without the logs, a new controller decides. It knows the step times and the noise scale from the state.
TEST_F(AdviserRestartTest, AJobGoesOnFromAStateAlone) {
  Adviser adviser(job_.settings(), {.state = state_});
  EXPECT_EQ(adviser.noise()->value, noise_->value);
  EXPECT_EQ(adviser.batch(), batch_);
  const Corrected step = *adviser.expected_step(512);
  EXPECT_LT(std::abs(std::log(step.seconds / job_.seconds(512))), 2 * step.relative_deviation);
  go_on(adviser);
  EXPECT_EQ(adviser.batch(), batches(whole_).back());
}

TEST_F(AdviserRestartTest, ANewDirectoryBeginsWithTheState) {
  const fs::path fresh = root_ / "fresh";
  {
    Adviser adviser(job_.settings(), {.directory = fresh, .state = state_});
    go_on(adviser);
  }
  EXPECT_EQ(read_run_log(fresh / "run.jsonl").front().step, interrupted_after + 1);
  expect_replays(fresh);
}

TEST_F(AdviserRestartTest, AStateReadsBackToTheSameBits) {
  const KeptState kept = kept_state_from_text(state_);
  EXPECT_EQ(to_text(kept), state_);
  EXPECT_EQ(kept.state.step, interrupted_after);
  EXPECT_THAT(user_error([&] { kept_state_from_text(state_.substr(1)); }), HasSubstr("cannot be read"));
  EXPECT_THAT(user_error([&] { kept_state_from_text("{\"version\":2}"); }), HasSubstr("version 2"));
}

TEST_F(AdviserRestartTest, ForgottenAveragesStayForgotten) {
  const fs::path directory = root_ / "forgetful";
  std::optional<NoiseScale> noise;
  {
    Adviser adviser(job_.settings(), {.directory = directory});
    job_.train(adviser, 60, 16);
    adviser.forget_noise();
    EXPECT_FALSE(adviser.noise());
    job_.train(adviser, 90, adviser.batch());
    noise = adviser.noise();
  }
  const Adviser again(job_.settings(), {.directory = directory, .after_step = 90});
  EXPECT_EQ(again.noise()->value, noise->value);
  EXPECT_EQ(again.noise()->low, noise->low);
  EXPECT_EQ(again.noise()->high, noise->high);
}

TEST_F(AdviserRestartTest, OtherSettingsBeginAfreshWithWhatIsKnown) {
  AdviserSettings other = job_.settings();
  other.batches = {16, 48, 96};
  {
    Adviser adviser(other, {.directory = cut_, .after_step = interrupted_after});
    EXPECT_THAT(adviser.take_notes(), testing::Contains(HasSubstr("decides afresh")));
    EXPECT_TRUE(adviser.expected_step(96));
    job_.train(adviser, steps, batch_);
  }
  expect_replays(cut_);
}

TEST_F(AdviserRestartTest, OtherMicroBatchesAreMeasuredAnew) {
  AdviserSettings other = job_.settings();
  other.micro_batch = 4;
  Adviser adviser(other, {.directory = cut_, .after_step = interrupted_after});
  EXPECT_EQ(adviser.noise()->value, noise_->value);
  EXPECT_FALSE(adviser.expected_step(32));
  job_.train(adviser, steps, batch_);
  EXPECT_TRUE(adviser.expected_step(32));
  adviser.close();
  expect_replays(cut_);
}

TEST_F(AdviserRestartTest, WhatDoesNotBelongTogetherIsRefused) {
  const auto refusal = [&](const Adviser::Start& start) {
    return user_error([&] { Adviser(job_.settings(), start); });
  };
  EXPECT_THAT(refusal({.directory = cut_, .after_step = 1000}), HasSubstr("ends after step 150"));
  EXPECT_THAT(refusal({.directory = root_ / "none", .after_step = 3}), HasSubstr("is not there"));
  EXPECT_THAT(refusal({.directory = cut_, .after_step = 100, .state = state_}), HasSubstr("of step 150"));
  Adviser smaller(job_.settings(32), {});
  for (int64_t i = 1; i <= interrupted_after; ++i) smaller.step(job_.step(i, 32));
  EXPECT_THAT(refusal({.directory = cut_, .state = smaller.state()}), HasSubstr("two jobs"));
}

}  // namespace
}  // namespace copus
