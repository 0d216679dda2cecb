// Tests branches of a run in every kind of layout, with ranks as threads: they start from the run's state and must not
// change it.
#include "copus/train/run/run_branches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "copus/base/testing/test_support.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/train/testing/take_snapshot.h"
#include "copus/train/testing/test_layouts.h"
#include "copus/train/trainer/branch.h"

namespace copus {
namespace {

using namespace layouts;
using ::testing::HasSubstr;

const auto go_on = [] { return StopReason::none; };
const auto nothing = [] {};
constexpr double unlimited = std::numeric_limits<double>::infinity();

class RunBranches : public ::testing::Test {
 protected:
  RunBranches() { write_corpus(folder_.path() / "corpus.txt"); }

  RunConfig config(const std::vector<Change>& changes) const {
    RunConfig config = small_run(folder_.path() / "corpus.txt");
    config.model.hidden_size = 32;
    config.model.intermediate_size = 48;
    config.model.num_layers = 4;
    config.model.head_dim = 8;
    config.data.held_out_fraction = 0.1;
    config.train.sequence_length = 16;
    config.train.global_batch = 8;
    config.train.micro_batch = 2;
    config.train.max_steps = 1000;
    config.optimizer.lr = 3e-3;
    return with_changes(config, changes);
  }

  struct Result {
    std::vector<double> losses;
    std::optional<RunCalibration> calibration;
  };

  // Makes eight steps, with branches after the fourth.
  static Result run(const RunConfig& config, bool with_branches) {
    Result result;
    train_on_every_rank(config, [&](Trainer& trainer, World& world, const Dataset& dataset) {
      Result mine;
      for (int step = 1; step <= 8; ++step) {
        StepRecord record = trainer.step();
        mine.losses.push_back(record.loss);
        if (step != 4 || !with_branches) continue;
        record.noise_scale = 5;
        const TrainingState before = trainer.state();
        const BranchesEnd end =
            train_branches(config, {.batch = config.train.global_batch, .repetitions = 1, .most_seconds = unlimited},
                           record, trainer, dataset, world, go_on, nothing);
        EXPECT_EQ(end.stopped, StopReason::none);
        EXPECT_TRUE(trainer.state() == before);
        mine.calibration = end.calibration;
        double seconds = end.calibration.seconds;
        world.everyone().broadcast(&seconds, 1, DataType::float64, 0);
        EXPECT_EQ(seconds, end.calibration.seconds) << "is the same on all ranks";
      }
      if (world.rank() == 0) result = mine;
    });
    return result;
  }

  TemporaryFolder folder_;
};

TEST_F(RunBranches, LeaveTheRunAsItWasInEveryLayout) {
  const std::vector<std::vector<Change>> all = {{ranks(1, 1, 1)},
                                                {ranks(2, 1, 1), zero_1},
                                                {ranks(2, 1, 1), zero_3},
                                                {ranks(2, 1, 1), zero_3, bf16},
                                                {ranks(1, 2, 1), sequence_parallel},
                                                {ranks(1, 1, 2), interleaved, tied},
                                                {ranks(2, 1, 2), zero_2},
                                                {ranks(2, 1, 1), signum},
                                                {ranks(2, 1, 1), zero_1, muon}};
  for (const std::vector<Change>& changes : all) {
    const RunConfig here = config(changes);
    SCOPED_TRACE(to_string(configuration_of(here)));
    const Result with = run(here, true), without = run(here, false);
    EXPECT_EQ(with.losses, without.losses);
    EXPECT_EQ(with.calibration->branches, 6);
    EXPECT_EQ(with.calibration->noise_scale, 5);
    EXPECT_EQ(with.calibration->critical_batch.has_value(), with.calibration->reason.empty());
  }
}

// RunCalibrations compares this share with an observation's share, so both must follow the learning rate's schedule,
// even where another limit is nearer.
TEST_F(RunBranches, ReportTheShareOfTheSchedule) {
  RunConfig both = config({ranks(1, 1, 1)});
  both.train.max_seconds = 1e-3;
  EXPECT_DOUBLE_EQ(run(both, true).calibration->share_done.value(), 4.0 / 1000);
}

// Layouts with the same bits measure the same critical batch.
TEST_F(RunBranches, ShowTheSameInEveryLayout) {
  const Result a = run(config({ranks(2, 1, 1)}), true), b = run(config({ranks(2, 1, 2), zero_1}), true);
  EXPECT_EQ(a.losses, b.losses);
  const RunCalibration one = *a.calibration, other = *b.calibration;
  ASSERT_TRUE(one.critical_batch) << one.reason;
  EXPECT_EQ(one.critical_batch, other.critical_batch);
  EXPECT_EQ(one.reason, other.reason);
}

// Branches from memory equal branches from a checkpoint.
TEST_F(RunBranches, StartFromTheWholeState) {
  const RunConfig run = config({ranks(1, 1, 1)});
  const Dataset dataset(run.data, run.train.sequence_length, run.model.vocab_size, run.execution.seed);
  const std::unique_ptr<World> world = single_rank_world();
  Trainer trunk(run, dataset, at::kCPU, *world);
  for (int step = 0; step < 5; ++step) trunk.step();
  CheckpointWriter writer(folder_.path() / "checkpoints", 1);
  writer.write(*take_snapshot(trunk, to_toml(run)));
  writer.finish();
  const Checkpoint checkpoint(*writer.last_written());
  const Branch branch{.global_batch = 16, .learning_rate = 1e-3, .rate_factor = 1, .samples = 64, .skipped_samples = 7};
  const RunConfig config = branch_in_layout(run, branch, trunk.state().consumed_tokens);
  Trainer from_memory(config, dataset, at::kCPU, *world), from_disk(config, dataset, at::kCPU, *world);
  from_memory.branch_from(trunk, branch.skipped_samples);
  from_disk.branch_from(checkpoint, branch.skipped_samples);
  while (!from_disk.finished()) EXPECT_EQ(from_memory.step().loss, from_disk.step().loss);
  EXPECT_TRUE(from_memory.finished());
  EXPECT_EQ(from_memory.held_out_loss(go_on), from_disk.held_out_loss(go_on));
}

TEST_F(RunBranches, StopWithTheRun) {
  const RunConfig here = config({ranks(2, 1, 1)});
  train_on_every_rank(here, [&](Trainer& trainer, World& world, const Dataset& dataset) {
    const StepRecord record = trainer.step();
    int asked = 0;
    const BranchesEnd end = train_branches(
        here, {.batch = 8, .repetitions = 1, .most_seconds = unlimited}, record, trainer, dataset, world,
        [&] { return ++asked > 20 && world.rank() == 0 ? StopReason::terminate : StopReason::none; }, nothing);
    EXPECT_EQ(end.stopped, StopReason::terminate);
    EXPECT_FALSE(end.calibration.critical_batch);
    EXPECT_EQ(end.calibration.reason, "the run was interrupted");
    EXPECT_EQ(trainer.step().step, 2) << "the run itself can still go on";
  });
}

// On the modelled clock, branches take the same seconds whenever they run.
TEST_F(RunBranches, CompleteRepetitionsCountIfTheBudgetEndsInALaterOne) {
  const RunConfig here = config({modelled});
  train_on_every_rank(here, [&](Trainer& trainer, World& world, const Dataset& dataset) {
    StepRecord record = trainer.step();
    record.noise_scale = 5;
    const auto calibrate = [&](int64_t repetitions, double most_seconds) {
      const CalibrationRequest request{.batch = 8, .repetitions = repetitions, .most_seconds = most_seconds};
      return train_branches(here, request, record, trainer, dataset, world, go_on, nothing).calibration;
    };
    const RunCalibration one = calibrate(1, unlimited), two = calibrate(2, unlimited);
    EXPECT_EQ(two.branches, 12);
    const RunCalibration cut = calibrate(2, one.seconds + (two.seconds - one.seconds) / 2);
    EXPECT_EQ(cut.branches, 6);
    EXPECT_EQ(cut.critical_batch, one.critical_batch);
    EXPECT_EQ(cut.deviation, one.deviation);
    EXPECT_GT(cut.seconds, one.seconds);
    EXPECT_LT(cut.seconds, two.seconds);
  });
}

TEST_F(RunBranches, EndWithTheBudget) {
  const RunConfig here = config({ranks(2, 1, 1)});
  train_on_every_rank(here, [&](Trainer& trainer, World& world, const Dataset& dataset) {
    const StepRecord record = trainer.step();
    const BranchesEnd end =
        train_branches(here, {.batch = 8, .repetitions = 2}, record, trainer, dataset, world, go_on, nothing);
    EXPECT_EQ(end.calibration.branches, 1) << "no other branch begins";
    EXPECT_FALSE(end.calibration.critical_batch);
    EXPECT_THAT(end.calibration.reason, HasSubstr("adapt.explore_budget"));
    EXPECT_GT(end.calibration.seconds, 0);
  });
}

}  // namespace
}  // namespace copus
