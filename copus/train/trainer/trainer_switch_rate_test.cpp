// The learning rate of runs that change their batch: updates, checkpoints and the Goodput of decisions use the factor
// that was announced for the batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/orchestrator/controller/controller.h"
#include "copus/statistics/efficiency.h"
#include "copus/train/testing/switch_test_support.h"
#include "copus/train/testing/take_snapshot.h"

namespace copus {
namespace {

using namespace layouts;
using namespace switch_tests;

// The rate has one factor for the batch, and is lower for a while after the batch has shrunk.
TEST_F(TrainerSwitch, TheLearningRateFollowsTheBatch) {
  RunConfig begin = config({ranks(1, 1, 1)});
  begin.optimizer.schedule = LearningRateSchedule::constant;
  const double lr = begin.optimizer.lr, beta2 = begin.optimizer.beta2;
  const History history = run(begin,
                              {{1, {global_batch(32)}, 2},
                               {2, {global_batch(32), micro_batch(4)}, 1.5},
                               {3, {global_batch(8)}, 1},
                               {6, {global_batch(16)}, 1.125}},
                              8);
  const auto at = [&](int64_t step) { return history.records[static_cast<size_t>(step - 1)].lr; };
  EXPECT_EQ(at(1), lr);
  EXPECT_DOUBLE_EQ(at(2), lr * 2);
  EXPECT_DOUBLE_EQ(at(3), lr * 1.5);
  EXPECT_EQ(history.records[2].rate_factor, 1.5);
  // AdamW's second moments, relative to their settled value at the batch. After a switch to a larger batch they
  // continue to rise.
  double ratio = 32 / 8.0;
  for (int i = 0; i < 2; ++i) ratio = 1 - (1 - ratio) * beta2;
  ratio *= 8 / 32.0;
  EXPECT_LT(ratio, 1);
  for (int64_t step = 4; step <= 6; ++step) {
    ratio = 1 - (1 - ratio) * beta2;
    EXPECT_DOUBLE_EQ(at(step), lr * std::sqrt(ratio));
    EXPECT_EQ(history.records[static_cast<size_t>(step - 1)].rate_factor, 1) << "without the ramp";
  }
  EXPECT_DOUBLE_EQ(at(7), lr * 1.125);  // second moments that are too large are not corrected
}

// A run that begins with another batch than its rate's reference batch has the rate for its own batch.
TEST_F(TrainerSwitch, ARunBeginsWithTheFactorForItsBatch) {
  for (const auto& [scaling, factor] :
       {std::pair{BatchScaling::square_root, 2.0}, {BatchScaling::linear, 4.0}, {BatchScaling::none, 1.0}}) {
    RunConfig begin = config({ranks(1, 1, 1), global_batch(32)});
    begin.optimizer.schedule = LearningRateSchedule::constant;
    begin.optimizer.reference_batch = 8;
    begin.optimizer.batch_scaling = scaling;
    const History history = run(begin, {}, 1);
    EXPECT_EQ(history.records[0].lr, begin.optimizer.lr * factor);
    EXPECT_EQ(history.state.rate_factor, factor);
  }
}

// Rank 0 passes the factor on in the next step's agreement, and that step's update uses it.
TEST_F(TrainerSwitch, AFactorThatIsAnnouncedCountsFromTheNextUpdateOnAllRanks) {
  RunConfig begin = config({ranks(2, 1, 1)});
  begin.optimizer.schedule = LearningRateSchedule::constant;
  std::optional<Snapshot> snapshot;
  std::vector<double> losses;
  train_on_every_rank(begin, [&](Trainer& trainer, World& world, const Dataset&) {
    const auto announce = [&](double factor) {
      if (world.rank() == 0) trainer.announce_rate_factor(factor);
    };
    EXPECT_EQ(trainer.step().lr, begin.optimizer.lr);
    announce(1.5);
    EXPECT_EQ(trainer.state().rate_factor, 1) << "nobody else knows of it yet";
    EXPECT_EQ(trainer.step().lr, begin.optimizer.lr * 1.5);
    EXPECT_EQ(trainer.state().rate_factor, 1.5);
    EXPECT_EQ(trainer.step().rate_factor, 1.5) << "until something else is said";
    std::optional<Snapshot> now = take_snapshot(trainer);
    if (now) snapshot = std::move(now);
    announce(1.25);
    for (int step = 0; step < 2; ++step) {
      const StepRecord record = trainer.step();
      EXPECT_EQ(record.lr, begin.optimizer.lr * 1.25);
      if (world.rank() == 0) losses.push_back(record.loss);
    }
  });
  CheckpointWriter writer(folder_.path() / "checkpoints", 1);
  writer.write(*snapshot);
  writer.finish();
  const Checkpoint checkpoint(*writer.last_written());
  // A run that resumes from the checkpoint has its factor, and is given the next one again.
  train_on_every_rank(begin, [&](Trainer& trainer, World& world, const Dataset&) {
    trainer.restore(checkpoint);
    EXPECT_EQ(trainer.state().rate_factor, 1.5);
    if (world.rank() == 0) trainer.announce_rate_factor(1.25);
    for (size_t step = 0; step < 2; ++step) {
      const double loss = trainer.step().loss;
      if (world.rank() == 0) {
        EXPECT_EQ(loss, losses[step]);
      }
    }
  });
  // With another batch it has the factor of a run that begins with that batch: the old factor was for another batch.
  RunConfig larger = with_changes(begin, {global_batch(32)});
  larger.optimizer.reference_batch = 8;
  train_on_every_rank(larger, [&](Trainer& trainer, World&, const Dataset&) {
    trainer.restore(checkpoint);
    EXPECT_EQ(trainer.state().rate_factor, 2);
  });
}

// The learning rate factor that a decision used for one of its listed candidates, computed from the candidate's
// Goodput, T SE r^(2 alpha).
double counted_rate_factor(const Decision& decision, const Configuration& configuration, double critical,
                           const RunConfig& config) {
  const auto ranked = std::find_if(decision.choice.best.begin(), decision.choice.best.end(),
                                   [&](const RankedCandidate& one) { return one.configuration == configuration; });
  if (ranked == decision.choice.best.end()) throw InternalError("it lists all candidates");
  const auto batch = static_cast<double>(configuration.global_batch);
  const double efficiency =
      statistical_efficiency(batch, critical, static_cast<double>(config.optimizer.reference_batch));
  return std::pow(ranked->goodput / (batch / ranked->step_seconds * efficiency), 1 / (2 * config.adapt.alpha));
}

// Goodput's learning rate at the time of the decision must equal the one that the trainer's updates then use.
TEST_F(TrainerSwitch, TheRateOfTheUpdatesIsTheOneThatGoodputCountedWith) {
  RunConfig begin = config({ranks(1, 1, 1)});
  begin.optimizer.schedule = LearningRateSchedule::constant;
  begin.optimizer.reference_batch = 4;
  begin.cluster.clock = ClockKind::virtual_time;
  begin.cluster.description.flops_per_second = 1e9;
  begin.adapt.policy = PolicyKind::copus;
  begin.adapt.objective = Objective::time;          // the limit in steps is never reached
  begin.adapt.global_batches = {4, 8, 16, 32, 64};  // with one micro-batch: as many candidates as a decision lists
  begin.adapt.micro_batches = {begin.train.micro_batch};
  begin.adapt.interval_samples = begin.adapt.dwell_samples = 32;
  begin.adapt.dwell_steps = 0;
  begin.adapt.alpha = 0.5;  // so that Goodput determines the rate
  int switches = 0, followed = 0;
  train_on_every_rank(begin, [&](Trainer& trainer, World&, const Dataset&) {
    Controller controller(begin, configuration_of(begin), Knowledge());
    double expected = std::numbers::sqrt2, announced = expected;  // of this step, and from the pending switch on
    for (int64_t step = 1; step <= 60; ++step) {
      const StepRecord record = trainer.step();
      ASSERT_NEAR(*record.rate_factor, expected, 1e-9) << "step " << step;
      ASSERT_LE(record.lr, begin.optimizer.lr * expected * (1 + 1e-9));
      // The noise scale grows and then falls, and large batches are fast, so that the batch grows and the cap follows.
      const double phi = step < 40 ? 4 + 0.5 * static_cast<double>(step) : 5;
      Observation seen = observation_of(record);
      seen.noise_scale = seen.noise_scale_low = seen.noise_scale_high = phi;
      seen.step_seconds = 1 + 0.001 * static_cast<double>(record.global_batch);  // independent of this machine's speed
      seen.elapsed_seconds = seen.seconds_left = 1e6 + static_cast<double>(step);  // enough time for a move to pay
      const Reaction reaction = controller.observe(seen);
      if (reaction.rate_factor) trainer.announce_rate_factor(*reaction.rate_factor);
      if (reaction.intent) trainer.announce(*reaction.intent);
      if (const auto& decision = reaction.decision) {
        const double now = counted_rate_factor(*decision, decision->current, 2 * phi, begin);
        followed += std::abs(now - expected) > 1e-6;
        expected = now;
        if (decision->moves) announced = counted_rate_factor(*decision, *decision->choice.target, 2 * phi, begin);
      }
      if (const auto report = trainer.switch_if_due()) {
        controller.report(*report);
        expected = announced;
        ++switches;
      }
    }
  });
  EXPECT_GE(switches, 2);
  EXPECT_GE(followed, 2) << "the rate follows between switches";
}

}  // namespace
}  // namespace copus
