// Runs on the modelled clock: one rank trains and measures what the job's ranks would together, and time is the job's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/performance/modelled_truth.h"
#include "copus/placement/relayout_plan.h"
#include "copus/train/testing/noise_scale_test_support.h"
#include "copus/train/testing/take_snapshot.h"

namespace copus {
namespace {

using namespace layouts;
using namespace noise_tests;
using ::testing::HasSubstr;

// A job that needs more ranks than there are here, in another precision.
const Change of_a_large_job = [](RunConfig& config) {
  modelled(config);
  config.cluster.stands_for = config.model;
  config.cluster.stands_for->hidden_size = 4096;
  config.cluster.stands_for->intermediate_size = 11008;
  config.cluster.stands_for->head_dim = 1024;
  config.cluster.stands_for_sequence_length = 256;
  config.cluster.stands_for_precision = Precision::bf16;
};
const Change truth = [](RunConfig& config) {
  config.cluster.truth = config.cluster.description;
  config.cluster.truth->flops_per_second = 2e10;
  config.cluster.truth_layout_error = 0.3;
};

double true_seconds(const RunConfig& config, const Configuration& configuration) {
  const PredictedJob job = predicted_job(config);
  StepTimeModel model(job.model, job.sequence_length, config.cluster.true_cluster(), training_system_of(config));
  const LayoutErrors errors{config.cluster.truth_layout_error, config.cluster.truth_seed};
  return model.predict(configuration).total() * errors.factor(configuration);
}

class ModelledClock : public NoiseScaleTest {
 protected:
  struct History {
    std::vector<StepRecord> records;
    std::vector<SwitchReport> reports;
    std::optional<Snapshot> snapshot;
  };

  // Trains `steps` steps, from a checkpoint if there is one. Announces a switch to `target` before step `announced`.
  static History run(const RunConfig& config, int64_t steps, const std::optional<Configuration>& target = std::nullopt,
                     int64_t announced = 2, const Checkpoint* checkpoint = nullptr) {
    History history;
    train(config, [&](Trainer& trainer, World& world) {
      EXPECT_EQ(world.size(), num_training_ranks(config));
      if (checkpoint != nullptr) trainer.restore(*checkpoint);
      History mine;
      for (int64_t step = 1; step <= steps; ++step) {
        if (target && step == announced && world.rank() == 0) {
          trainer.announce({.configuration = *target, .commit_after_step = announced + 1, .rate_factor = 1.25});
        }
        mine.records.push_back(trainer.step());
        if (auto report = trainer.switch_if_due()) mine.reports.push_back(*report);
      }
      mine.snapshot = take_snapshot(trainer);
      if (world.rank() == 0) history = std::move(mine);
    });
    return history;
  }

  static void expect_same_training(const std::vector<StepRecord>& records, const std::vector<StepRecord>& expected) {
    ASSERT_EQ(records.size(), expected.size());
    const auto expect_close_if_known = [](const std::optional<double>& value, const std::optional<double>& other,
                                          double tolerance) {
      ASSERT_EQ(value.has_value(), other.has_value());
      if (!value) return;
      EXPECT_NEAR(*value, *other, tolerance * *other);
    };
    for (size_t i = 0; i < records.size(); ++i) {
      const StepRecord &one = records[i], &other = expected[i];
      SCOPED_TRACE(concat("step ", one.step, " of ", to_string(one.strategy), ", micro-batch ", one.micro_batch));
      EXPECT_EQ(one.strategy, other.strategy);
      EXPECT_EQ(one.global_batch, other.global_batch);
      EXPECT_EQ(one.consumed_samples, other.consumed_samples);
      EXPECT_EQ(one.small_batch, other.small_batch);
      expect_close(one.loss, other.loss, 2e-6);
      expect_close(one.grad_norm, other.grad_norm, 1e-5);
      expect_close_if_known(one.small_batch_squared_norm, other.small_batch_squared_norm, 2e-5);
      // Differences of norms lose digits.
      expect_close_if_known(one.noise_scale_low, other.noise_scale_low, 1e-3);
      expect_close_if_known(one.noise_scale, other.noise_scale, 1e-3);
    }
  }
};

TEST_F(ModelledClock, MeasuresWhatTheRanksOfTheJobWould) {
  int64_t known = 0;  // steps whose noise scale is known
  for (const std::vector<Change>& layout : {
           std::vector<Change>{ranks(4, 1, 1), micro_batch(1)},  // rank, in two micro-batches
           {ranks(4, 1, 1), micro_batch(2)},                     // rank, in one micro-batch
           {ranks(1, 1, 2), micro_batch(2), tied},               // prefix
           {ranks(2, 1, 2), micro_batch(2), tied},               // rank
           {ranks(2, 2, 1), micro_batch(4), zero_1},             // rank
           {ranks(1, 2, 2), micro_batch(8), split_every_step},   // prefix, split in two
           {ranks(1, 2, 1), micro_batch(3), global_batch(9)},    // the first of three
       }) {
    const std::vector<StepRecord> real = run(config(layout), 12).records;
    const std::vector<StepRecord> here = run(config(join(layout, {modelled})), 12).records;
    expect_same_training(here, real);
    EXPECT_TRUE(here.back().small_batch);
    known += std::count_if(here.begin(), here.end(), [](const StepRecord& record) { return record.noise_scale > 0; });
  }
  EXPECT_GT(known, 20);
}

TEST_F(ModelledClock, AStepThatMeasuresNothingIsTheSameAsWell) {
  const std::vector<Change> layout = {ranks(1, 2, 2), micro_batch(8), disabled};
  expect_same_training(run(config(join(layout, {modelled})), 4).records, run(config(layout), 4).records);
}

TEST_F(ModelledClock, TimeIsThatOfTheJobToTheLastBit) {
  for (const std::vector<Change>& changes :
       {std::vector<Change>{modelled}, {modelled, truth}, {of_a_large_job}, {of_a_large_job, truth}}) {
    const RunConfig run_config = config(join({ranks(4, 1, 2), micro_batch(1)}, changes));
    const double seconds = true_seconds(run_config, configuration_of(run_config));
    double elapsed = 0;
    for (const StepRecord& record : run(run_config, 3).records) {
      EXPECT_EQ(record.step_seconds, seconds);
      EXPECT_EQ(record.elapsed_seconds, elapsed += seconds);
    }
  }
}

TEST_F(ModelledClock, ASwitchTakesWhatItWouldOnTheCluster) {
  const RunConfig begin = config({ranks(4, 1, 2), micro_batch(1), of_a_large_job, truth});
  Configuration target = configuration_of(begin);
  target.strategy = {.data_parallel = 8};
  target.global_batch = 16;
  const History history = run(begin, 5, target);
  ASSERT_EQ(history.reports.size(), 1U);
  const SwitchReport& report = history.reports.front();
  EXPECT_EQ(report.outcome, SwitchReport::Outcome::moved) << report.reason;
  EXPECT_EQ(report.after_step, 3);
  const RelayoutRequest request{.model = predicted_job(begin).model,
                                .sequence_length = 256,
                                .from = begin.parallel,
                                .to = target.strategy,
                                .recipe = state_recipe(OptimizerKind::adamw, DType::bf16),
                                .ranks_per_node = 2};
  const double pause = relayout_seconds(request, *begin.cluster.truth);
  EXPECT_GT(pause, 0);
  EXPECT_EQ(report.pause_seconds, pause);
  EXPECT_EQ(history.records[3].switch_seconds, pause);
  EXPECT_EQ(to_string(history.records[3].strategy), "d=8,t=1,p=1");
  EXPECT_EQ(history.records[3].step_seconds, true_seconds(begin, target));
  EXPECT_EQ(history.records[3].elapsed_seconds,
            history.records[2].elapsed_seconds + pause + true_seconds(begin, target));
  EXPECT_EQ(history.records[4].consumed_samples, 3 * 8 + 2 * 16) << "no sample is skipped or repeated";

  target.strategy = begin.parallel;
  const SwitchReport batch_alone = run(begin, 5, target).reports.at(0);
  EXPECT_EQ(batch_alone.outcome, SwitchReport::Outcome::moved) << batch_alone.reason;
  EXPECT_EQ(batch_alone.pause_seconds, 0);
}

TEST_F(ModelledClock, WhatTheJobCannotBeIsVetoed) {
  RunConfig begin = config({ranks(4, 1, 2), micro_batch(1), of_a_large_job});
  const auto reason_against = [&](const ParallelStrategy& strategy, bool is_lack_of_memory) {
    Configuration target = configuration_of(begin);
    target.strategy = strategy;
    const SwitchReport report = run(begin, 4, target).reports.at(0);
    EXPECT_EQ(report.outcome, SwitchReport::Outcome::vetoed);
    EXPECT_EQ(report.is_lack_of_memory, is_lack_of_memory);
    return report.reason;
  };
  EXPECT_THAT(reason_against({.data_parallel = 4}, false), HasSubstr("a layout of 4 ranks in a job of 8"));
  EXPECT_THAT(reason_against({.pipeline_parallel = 8}, false), HasSubstr("pipeline_parallel"));
  begin.cluster.truth = begin.cluster.description;
  begin.cluster.truth->device.memory_bytes = 1e9;
  EXPECT_THAT(reason_against({.data_parallel = 8}, true), HasSubstr("needs")) << "the true devices have less memory";
}

TEST_F(ModelledClock, AResumedRunIsBitwiseTheUninterruptedOne) {
  const RunConfig begin = config({ranks(4, 1, 2), micro_batch(1), of_a_large_job, truth});
  Configuration target = configuration_of(begin);
  target.strategy = {.data_parallel = 8};
  target.global_batch = 16;
  target.micro_batch = 2;
  const History whole = run(begin, 9, target);
  write_checkpoint(run(begin, 5, target).snapshot);
  const Checkpoint checkpoint = read_checkpoint();
  RunConfig rest = begin;  // the configuration in which the checkpoint was written
  History resumed;
  train(rest, [&](Trainer&, World& world) {
    const Dataset dataset = open_data(rest);
    Trainer trainer(rest, target, dataset, test_device(), world);
    trainer.restore(checkpoint);
    for (int64_t step = 0; step < 4; ++step) resumed.records.push_back(trainer.step());
    resumed.snapshot = take_snapshot(trainer);
  });
  for (size_t i = 0; i < resumed.records.size(); ++i) {
    EXPECT_EQ(words_of(resumed.records[i]), words_of(whole.records[5 + i])) << "step " << resumed.records[i].step;
  }
  ASSERT_EQ(resumed.snapshot->weights.size(), whole.snapshot->weights.size());
  for (size_t i = 0; i < resumed.snapshot->weights.size(); ++i) {
    EXPECT_TRUE(to_float(resumed.snapshot->weights[i].view()) == to_float(whole.snapshot->weights[i].view()));
  }
}

}  // namespace
}  // namespace copus
