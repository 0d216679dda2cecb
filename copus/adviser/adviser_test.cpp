// Tests advice to jobs with known noise scale and step times, and its logs.
#include "copus/adviser/adviser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "copus/adviser/testing/advised_job.h"
#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/report/drawn/html_report.h"
#include "copus/report/logs/decision_replay.h"
#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

class AdviserTest : public TestDirectory {
 protected:
  Adviser adviser(int64_t batch = 16) { return Adviser(job_.settings(batch), {.directory = directory_}); }
  Adviser silent_adviser(int64_t batch = 16) const { return Adviser(job_.settings(batch), {}); }

  std::vector<StepRecord> records() const { return read_run_log(directory_ / "run.jsonl"); }
  std::vector<DecisionEvent> events() const { return read_decision_log(directory_ / "decisions.jsonl"); }
  AdvisedConfig config() const {
    return parse_advised_config(read_text_file(directory_ / "config.toml"), "config.toml");
  }
  Replay replayed() const { return replay(config(), records(), events()); }

  template <class Event>
  std::vector<Event> all() const {
    std::vector<Event> found;
    for (const DecisionEvent& event : events()) {
      if (const auto* one = std::get_if<Event>(&event)) found.push_back(*one);
    }
    return found;
  }

  AdvisedJob job_;
};

// B_c = c phi with c = 1, and step times for which the highest Goodput is at B = B_c.
TEST_F(AdviserTest, AdviceApproachesTheCriticalBatch) {
  for (const double noise_scale : {512.0, 1024.0}) {
    job_.noise_scale = noise_scale;
    job_.seconds_per_micro_batch = 16 / noise_scale;
    ASSERT_DOUBLE_EQ(job_.best_batch(), noise_scale);
    for (const int64_t begin : {int64_t{16}, int64_t{8192}}) {
      Adviser adviser = silent_adviser(begin);
      const std::vector<Advice> advice = job_.train(adviser, 1500, begin);
      ASSERT_FALSE(advice.empty()) << noise_scale << " from " << begin;
      EXPECT_NEAR(*advice.back().critical_batch / noise_scale, 1, 0.25) << " from " << begin;
      const double reached = static_cast<double>(adviser.batch()) / noise_scale;
      EXPECT_TRUE(reached >= 0.5 && reached <= 2) << adviser.batch() << " from " << begin;
      EXPECT_LT(adviser.noise()->low, noise_scale);
      EXPECT_GT(adviser.noise()->high, noise_scale);
    }
  }
}

TEST_F(AdviserTest, AnAdviceSaysWhatItRestsOn) {
  Adviser adviser = silent_adviser();
  const std::vector<Advice> advice = job_.train(adviser, 300, 16);
  ASSERT_FALSE(advice.empty());
  const Advice& first = advice.front();
  EXPECT_GT(first.batch, 16);
  EXPECT_EQ(first.micro_batches, first.batch / 16);
  EXPECT_NEAR(first.learning_rate_factor, std::sqrt(static_cast<double>(first.batch) / 16), 0.5);
  EXPECT_LT(*first.gain_low, first.gain);
  EXPECT_GT(*first.gain_high, first.gain);
  EXPECT_LT(*first.noise_scale_low, job_.noise_scale);
  EXPECT_THAT(first.reason, HasSubstr("Goodput"));
}

// Steps of one batch do not show how their time splits into a part per step and a part per micro-batch, so the first
// advice relies on a guess. The gain's interval contains the true gain whether this guess is too low or too high.
TEST_F(AdviserTest, TheGainOfTheFirstAdviceIsWithinItsInterval) {
  for (const double once : {0.08, 0.25, 1.0}) {
    job_.seconds_once = once;
    job_.seconds_per_micro_batch = 1;
    Adviser adviser = silent_adviser();
    std::optional<Advice> advice;
    while (!advice && adviser.steps() < 400) advice = adviser.step(job_.step(adviser.steps() + 1, 16));
    ASSERT_TRUE(advice) << once;
    const auto worth = [&](int64_t batch) {
      return static_cast<double>(batch) / job_.seconds(batch) / (job_.noise_scale + static_cast<double>(batch));
    };
    const double truth = worth(advice->batch) / worth(16) - 1;
    EXPECT_LE(*advice->gain_low, truth) << once;
    EXPECT_GE(*advice->gain_high, truth) << once;
  }
}

TEST_F(AdviserTest, TwoBatchesTellHowLongStepsOfOthersTake) {
  job_.seconds_once = 3;
  Adviser adviser = silent_adviser();
  EXPECT_FALSE(adviser.expected_step(16));
  for (const int64_t batch : {16, 128}) {
    for (int i = 0; i < 40; ++i) adviser.step(job_.step(adviser.steps() + 1, batch));
  }
  for (const int64_t batch : {16, 32, 64, 128, 512}) {
    const Corrected step = *adviser.expected_step(batch);
    EXPECT_LT(std::abs(std::log(step.seconds / job_.seconds(batch))), 2 * step.relative_deviation) << batch;
    EXPECT_NEAR(step.seconds / job_.seconds(batch), 1, 0.05) << batch;
  }
  EXPECT_THAT(user_error([&] { (void)adviser.expected_step(17); }), HasSubstr("multiple of the micro-batch of 8 x 2"));
}

TEST_F(AdviserTest, WhatIsNotMeasuredIsInTheReport) {
  {
    Adviser adviser = this->adviser();
    job_.train(adviser, 2, 16);
    adviser.log_unmeasured("too early for a controller");
    job_.train(adviser, 60, 16);
    adviser.log_unmeasured("the norm was None since step 61");
    adviser.close();
  }
  ASSERT_EQ(all<Unmeasured>().size(), 2U);
  EXPECT_EQ(all<Unmeasured>()[1].step, 60);
  EXPECT_FALSE(replayed().difference);
  write_html_report(directory_);
  EXPECT_THAT(read_text_file(directory_ / "report.html"),
              AllOf(HasSubstr("is not measured"), HasSubstr("the norm was None since step 61")));
}

// With steps of one micro-batch, the noise scale can no longer be measured, so no other batch could be recommended
// later.
TEST_F(AdviserTest, StepsOfOneMicroBatchAreAdvisedOnlyWhereTheyAreListed) {
  job_.noise_scale = 4;  // small enough that the smallest batch is best
  job_.seconds_once = 0.01;
  for (const bool listed : {false, true}) {
    AdviserSettings settings = job_.settings(64);
    if (listed) settings.batches = {16, 32, 64};
    Adviser adviser(settings, {});
    const std::vector<Advice> followed = job_.train(adviser, 400, 64);
    ASSERT_FALSE(followed.empty());
    EXPECT_EQ(followed.back().batch, listed ? 16 : 32);
  }
}

// The only listed batch may be the job's own.
TEST_F(AdviserTest, AJobWithNothingToChooseAmongIsMeasuredAndNeverAdvised) {
  job_.noise_scale = 4;  // another batch would be best
  AdviserSettings settings = job_.settings(64);
  settings.batches = {64};
  Adviser adviser(settings, {.directory = directory_});
  EXPECT_TRUE(job_.train(adviser, 400, 64).empty());
  ASSERT_TRUE(adviser.noise());
  EXPECT_NEAR(*adviser.noise()->value, job_.noise_scale, 0.5 * job_.noise_scale);
  adviser.close();
  EXPECT_EQ(records().size(), 400U);
  EXPECT_FALSE(replayed().difference);
}

TEST_F(AdviserTest, ItsLogsReplayToTheSameDecisions) {
  {
    Adviser advised = adviser();
    job_.train(advised, 400, 16);
  }
  const Replay replay = replayed();
  EXPECT_FALSE(replay.difference) << replay.difference->what;
  EXPECT_GT(replay.decisions, 20);
  EXPECT_GT(replay.switches, 0);
  EXPECT_EQ(records().size(), 400);
  write_html_report(directory_);
  EXPECT_TRUE(read_text_file(directory_ / "report.html").find("Switches") != std::string::npos);
}

// The batch is fixed, whatever the advice.
TEST_F(AdviserTest, AJobThatTellsItsLengthIsAdvisedEverySixteenthOfIt) {
  const auto decisions = [this](int64_t max_steps) {
    std::filesystem::remove(directory_ / "run.jsonl");
    std::filesystem::remove(directory_ / "decisions.jsonl");
    AdviserSettings settings = job_.settings();
    settings.more.emplace_back("adapt.interval_samples=1048576");
    settings.max_steps = max_steps;
    Adviser advised(settings, {.directory = directory_});
    for (int64_t step = 1; step <= 160; ++step) advised.step(job_.step(step, 16));
    advised.close();
    return std::ssize(all<Decision>());
  };
  const int64_t first_looks = decisions(0);
  EXPECT_EQ(records().back().share_done, std::nullopt);
  EXPECT_GT(decisions(160), first_looks + 10);
  EXPECT_EQ(records()[79].share_done, 0.5);
  EXPECT_EQ(records()[79].seconds_left, records()[79].elapsed_seconds);
  EXPECT_FALSE(replayed().difference);
}

// A step with another batch, recommended or not, is logged as a switch before that step.
TEST_F(AdviserTest, TheSamplesOfAStepTellWhatTheJobDoes) {
  {
    Adviser advised = adviser();
    for (int i = 0; i < 60; ++i) advised.step(job_.step(advised.steps() + 1, i < 30 ? 16 : 48));
    EXPECT_EQ(advised.batch(), 48);
    EXPECT_EQ(advised.consumed_samples(), 30 * 16 + 30 * 48);
  }
  const std::vector<SwitchReport> switches = all<SwitchReport>();
  ASSERT_EQ(switches.size(), 1);
  EXPECT_EQ(switches[0].after_step, 30);
  EXPECT_EQ(switches[0].from.global_batch, 16);
  EXPECT_EQ(switches[0].to.global_batch, 48);
  EXPECT_NEAR(*switches[0].rate_factor, std::sqrt(3.0), 0.75);
  EXPECT_EQ(records()[30].global_batch, 48);
  const Replay replay = replayed();
  EXPECT_FALSE(replay.difference) << replay.difference->what;
}

TEST_F(AdviserTest, AReplayRefusesASwitchToABatchThatTheRanksCannotShare) {
  {
    Adviser advised = adviser();
    for (int i = 0; i < 60; ++i) advised.step(job_.step(advised.steps() + 1, i < 30 ? 16 : 48));
  }
  std::vector<DecisionEvent> damaged = events();
  for (DecisionEvent& event : damaged) {
    if (auto* report = std::get_if<SwitchReport>(&event)) report->to.global_batch = 49;
  }
  EXPECT_THAT(user_error([&] { replay(config(), records(), damaged); }), HasSubstr("damaged"));
}

TEST_F(AdviserTest, PartialBatchesAreLeftOutOfEverything) {
  Adviser with = adviser(32), without = silent_adviser(32);
  for (int64_t i = 1; i <= 100; ++i) {
    if (i % 10 == 0) {
      AdvisedStep partial = job_.step(i, 32);
      partial.samples = 20;
      partial.small_batch = 4;
      partial.gradient_norm = 1e6;
      EXPECT_FALSE(with.step(partial));
    }
    EXPECT_EQ(with.step(job_.step(i, 32)).has_value(), without.step(job_.step(i, 32)).has_value());
  }
  EXPECT_THAT(with.take_notes(), Contains(HasSubstr("a step of 20 samples is left out")).Times(1));
  EXPECT_EQ(with.steps(), 100);
  EXPECT_EQ(with.consumed_samples(), without.consumed_samples());
  EXPECT_EQ(with.noise()->value, without.noise()->value);
  EXPECT_FALSE(replayed().difference);
}

TEST_F(AdviserTest, StepsThatAreNotFiniteAreSkipped) {
  {
    Adviser with = adviser(32), without = silent_adviser(32);
    for (int64_t i = 1; i <= 100; ++i) {
      if (i % 2 == 0) {
        AdvisedStep skipped = job_.step(i, 32);
        skipped.gradient_norm = std::numeric_limits<double>::infinity();
        skipped.seconds *= 100;
        with.step(skipped);
      }
      with.step(job_.step(i, 32));
      without.step(job_.step(i, 32));
    }
    EXPECT_EQ(with.steps(), 150);
    EXPECT_EQ(with.noise()->value, without.noise()->value);
    EXPECT_NEAR(with.expected_step(64)->seconds, without.expected_step(64)->seconds, 0.02);
  }
  EXPECT_EQ(records().back().skipped_samples, 50 * 32);
  EXPECT_TRUE(records()[1].skipped());
  EXPECT_FALSE(records()[2].skipped());
  EXPECT_FALSE(replayed().difference);
}

// Values that a job does not report are null in its log; this does not count as a skipped step.
TEST_F(AdviserTest, AJobNeedNotTellItsLossOrLearningRate) {
  int advised = 0;
  {
    Adviser told = adviser();
    for (int64_t i = 1; i <= 200; ++i) {
      AdvisedStep step = job_.step(i, 16);
      step.loss.reset();
      step.learning_rate.reset();
      advised += told.step(step).has_value();
    }
  }
  EXPECT_GT(advised, 0);
  EXPECT_TRUE(std::isnan(records().back().lr));
  EXPECT_TRUE(std::isnan(records().back().loss));
  EXPECT_FALSE(records().back().skipped());
  EXPECT_FALSE(replayed().difference);
  write_html_report(directory_);
  EXPECT_TRUE(read_text_file(directory_ / "report.html").find("none skipped") != std::string::npos);
}

// A measured step also represents the unmeasured steps before it.
TEST_F(AdviserTest, NotEveryStepNeedMeasure) {
  AdviserSettings settings = job_.settings();
  settings.more.emplace_back("noise_scale.window_samples=2048");
  Adviser adviser(settings, {});
  NoiseAverage expected;
  for (int64_t i = 1; i <= 1000; ++i) {
    AdvisedStep step = job_.step(i, 16);
    if (i % 4 != 0) {
      step.small_batch.reset();
      step.small_squared_norm.reset();
    } else {
      const NormObservation norms{8, *step.small_squared_norm, 16, step.gradient_norm * step.gradient_norm};
      expected = observe(expected, norms, 4 * 16, {.samples = 2048});
    }
    adviser.step(step);
  }
  ASSERT_TRUE(adviser.noise());
  EXPECT_GT(adviser.noise()->low, 0);
  EXPECT_EQ(adviser.noise()->low, noise_scale(expected)->low);
  EXPECT_EQ(adviser.noise()->squared_gradient.value, noise_scale(expected)->squared_gradient.value);
}

TEST_F(AdviserTest, ADirectoryHasOneJobAndOneWriter) {
  Adviser first = adviser();
  first.step(job_.step(1, 16));
  EXPECT_THAT(user_error([&] { adviser(); }), HasSubstr("a log of a job already"));
  EXPECT_THAT(user_error([&] { Adviser(job_.settings(), {.directory = directory_, .after_step = 1}); }),
              HasSubstr("another process is writing"));
  first.close();
  EXPECT_THAT(user_error([&] { first.step(job_.step(2, 16)); }), HasSubstr("closed"));
  EXPECT_EQ(Adviser(job_.settings(), {.directory = directory_, .after_step = 1}).steps(), 1);
}

TEST_F(AdviserTest, NumbersThatNoStepHasAreRefused) {
  Adviser adviser = silent_adviser();
  const auto refusal = [&](auto change) {
    AdvisedStep step = job_.step(1, 16);
    change(step);
    return user_error([&] { adviser.step(step); });
  };
  EXPECT_THAT(refusal([](AdvisedStep& step) { step.samples = 0; }), HasSubstr("samples of a step is 0"));
  EXPECT_THAT(refusal([](AdvisedStep& step) { step.seconds = 0; }), HasSubstr("seconds"));
  EXPECT_THAT(refusal([](AdvisedStep& step) { step.gradient_norm = -1; }), HasSubstr("grad_norm"));
  EXPECT_THAT(refusal([](AdvisedStep& step) { step.small_batch = 16; }),
              AllOf(HasSubstr("small_batch"), HasSubstr("fewer than the step's 16")));
  EXPECT_THAT(refusal([](AdvisedStep& step) { step.small_batch.reset(); }), HasSubstr("both or neither"));
  EXPECT_THAT(refusal([](AdvisedStep& step) { step.learning_rate = -1; }), HasSubstr("lr"));
  EXPECT_EQ(adviser.steps(), 0);
}

}  // namespace
}  // namespace copus
