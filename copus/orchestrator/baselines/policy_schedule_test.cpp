// Tests of the schedules that depend on the progress of the run: seesaw and late-switch. The tests of "steps" are in
// policy_baselines_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "copus/base/testing/test_support.h"
#include "copus/orchestrator/learning_rate/learning_rate.h"
#include "copus/orchestrator/policies/policy.h"
#include "copus/orchestrator/testing/policy_test_support.h"

namespace copus {
namespace {

using namespace policy_test;
using testing::HasSubstr;

void show_nothing(Observation&, const Configuration&) {}

// A run of 10000 samples that begins in batches of 16.
RunConfig ten_thousand_samples(PolicyKind policy) {
  RunConfig config = run_config(policy, 16);
  config.train.sequence_length = 100;
  config.train.max_tokens = 1'000'000;
  config.adapt.interval_samples = 1'000'000;
  config.adapt.late_switch_batch = 128;
  config.optimizer.lr = 0.02;
  return config;
}

TEST(LateSwitchPolicy, SwitchesOnceAfterItsShareOfTheRunToTheFastestLayoutOfTheLargeBatch) {
  RunConfig config = ten_thousand_samples(PolicyKind::late_switch);
  config.adapt.late_switch_share = 0.6;
  PaperRun run(config, two_layouts(8, 256), {pipeline, 16, 1});
  run.run_to(10'000, show_nothing);
  ASSERT_EQ(run.moves().size(), 1u);
  EXPECT_EQ(run.moves()[0].consumed_samples, 6000);
  EXPECT_EQ(run.moves()[0].to, (Configuration{data, 128, 1}));
  EXPECT_THAT(run.moves()[0].choice.reason, HasSubstr("60 % of the run is done"));
  EXPECT_FALSE(run.moves()[0].choice.target_rate_factor) << "the rate follows [optimizer]";
}

TEST(LateSwitchPolicy, ARunLimitedByTimeIsClockedBySecondsAndOneWithoutAnEndIsRefused) {
  RunConfig config = ten_thousand_samples(PolicyKind::late_switch);
  config.train.max_tokens = 0;
  EXPECT_THAT(failure(config), HasSubstr("the run has no end"));
  config.train.max_seconds = 400 * 24;  // a step of 16 samples takes 24 s in the pipeline
  PaperRun run(config, two_layouts(8, 256), {pipeline, 16, 1});
  run.run_to(6400, show_nothing);
  ASSERT_EQ(run.moves().size(), 1u);
  EXPECT_EQ(run.moves()[0].after_step, 300);
}

TEST(LateSwitchPolicy, StaysInTheLayoutWhereTheBatchStays) {
  RunConfig config = ten_thousand_samples(PolicyKind::late_switch);
  config.adapt.interval_samples = 16;
  PaperRun run(config, two_layouts(8, 256), {data, 16, 1});  // not the fastest layout of this batch
  run.run_to(7000, show_nothing);
  EXPECT_EQ(run.moves().size(), 0u);
}

// A run under seesaw, with its rates. Each decision is obeyed at once.
class SeesawRun {
 public:
  SeesawRun(const RunConfig& config, std::vector<Candidate> candidates)
      : config_(config),
        schedule_(config.optimizer, config.train),
        policy_(make_policy(config)),
        candidates_(std::move(candidates)) {
    EXPECT_NE(find(16), nullptr);
    current_ = *find(16);
  }

  bool is_done() const { return latest_.consumed_samples >= 10'000; }

  // Makes a step. As in a run, a switch is made one step after its decision.
  void step() {
    ++latest_.step;
    latest_.consumed_samples += current_.global_batch;
    latest_.elapsed_seconds += latest_.step_seconds = 1;
    rate_ = schedule() * factor_;
    batch_ = current_.global_batch;
    policy_->observe(latest_, current_);
    if (under_way_) {
      factor_ = under_way_->target_rate_factor.value();
      current_ = *under_way_->target;
      under_way_.reset();
    } else if (policy_->is_due(latest_, current_)) {
      const Choice choice = policy_->choose({latest_, current_, candidates_, 1'000'000, 0, 16});
      factor_ = choice.rate_factor.value();
      EXPECT_TRUE(std::isfinite(factor_));
      if (choice.target) under_way_ = choice;
      ++decisions_;
    }
  }

  double schedule() const { return schedule_.at({latest_.consumed_samples * 100, latest_.elapsed_seconds}); }
  // Rate and batch of the latest step.
  double rate() const { return rate_; }
  int64_t batch() const { return batch_; }
  int64_t decisions() const { return decisions_; }

  double factor_ = 1;

 private:
  const Configuration* find(int64_t batch) const {
    for (const Candidate& candidate : candidates_) {
      if (candidate.configuration.global_batch == batch) return &candidate.configuration;
    }
    return nullptr;
  }

  RunConfig config_;
  LearningRate schedule_;
  std::unique_ptr<Policy> policy_;
  std::vector<Candidate> candidates_;
  Configuration current_;
  Observation latest_;
  std::optional<Choice> under_way_;
  double rate_ = 0;
  int64_t batch_ = 16;
  int64_t decisions_ = 0;
};

TEST(SeesawPolicy, DoublesTheBatchAtEachHalvingOfTheScheduleAndTakesTheRootOfItOffTheRate) {
  for (const LearningRateSchedule kind : {LearningRateSchedule::cosine, LearningRateSchedule::wsd}) {
    RunConfig config = ten_thousand_samples(PolicyKind::seesaw);
    config.optimizer.schedule = kind;
    config.optimizer.decay_tokens = 0.5;
    SeesawRun run(config, two_layouts(8, 1024));
    double fall_before = 1, fall_two_before = 1;  // of the schedule, at the steps before
    while (!run.is_done()) {
      run.step();
      EXPECT_NEAR(run.rate() / (0.02 * std::sqrt(16.0 / static_cast<double>(run.batch()))), 1, 0.02);
      // A cut that is detected after a step takes effect after the next one.
      EXPECT_EQ(run.batch(), 16 << static_cast<int64_t>(std::floor(std::max(0.0, -std::log2(fall_two_before)))));
      fall_two_before = std::exchange(fall_before, run.schedule() / 0.02);
    }
    EXPECT_EQ(run.batch(), 128) << "the schedule falls to a tenth";
    EXPECT_LT(run.decisions(), 240);
  }
}

TEST(SeesawPolicy, InTheLargestBatchTheRateFallsAsTheScheduleDoes) {
  const RunConfig config = ten_thousand_samples(PolicyKind::seesaw);
  SeesawRun run(config, two_layouts(8, 32));
  int64_t steps_at_the_end = 0;
  while (!run.is_done()) {
    const bool is_at_the_end = run.batch() == 32;
    run.step();
    if (!is_at_the_end) continue;
    EXPECT_DOUBLE_EQ(run.rate(), run.schedule() * std::sqrt(2));
    ++steps_at_the_end;
  }
  EXPECT_GT(steps_at_the_end, 100);
  EXPECT_NEAR(run.rate(), 0.1 * 0.02 * std::sqrt(2), 1e-4);
}

TEST(SeesawPolicy, InABatchThatIsNotTheWantedOneRateAndBatchKeepTheirProportion) {
  SeesawRun run(ten_thousand_samples(PolicyKind::seesaw), affine_candidates(data, {16, 24, 1024}, {1, 1}));
  while (run.schedule() > 0.4 * 0.02) run.step();
  EXPECT_EQ(run.batch(), 24) << "nearer to 32 than 1024 is";
  EXPECT_NEAR(run.rate() / (0.02 / 2 * std::sqrt(24.0 / 16)), 1, 0.02);
}

TEST(SeesawPolicy, TheWarmUpIsNoFallAndTheFirstRateIsThatOfTheFirstBatch) {
  RunConfig config = ten_thousand_samples(PolicyKind::seesaw);
  config.optimizer.warmup_tokens = 0.2;
  config.optimizer.reference_batch = 4;  // so that batches of 16 have twice its rate
  SeesawRun run(config, two_layouts(8, 1024));
  run.factor_ = initial_rate_factor(config, 16);
  for (int64_t step = 1; step <= 150; ++step) {
    run.step();
    EXPECT_EQ(run.batch(), 16);
    EXPECT_NEAR(run.rate() / (0.02 * 2 * std::min(1.0, static_cast<double>(step) / 125)), 1, 0.02) << step;
  }
}

TEST(SeesawPolicy, AScheduleThatEndsAtZeroIsNoTrouble) {
  RunConfig config = ten_thousand_samples(PolicyKind::seesaw);
  config.optimizer.min_lr_ratio = 0;
  SeesawRun run(config, two_layouts(8, 256));
  while (!run.is_done()) {
    run.step();
    EXPECT_LE(run.rate(), 0.02 * 1.001);
    EXPECT_TRUE(std::isfinite(run.rate()));
  }
  EXPECT_EQ(run.batch(), 256);
}

}  // namespace
}  // namespace copus
