// The gradient noise scale over a run: its averages survive skipped steps, outliers, checkpoints and changes of layout,
// and measuring it does not change training.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "copus/train/testing/noise_scale_test_support.h"
#include "copus/train/testing/take_snapshot.h"

namespace copus {
namespace {

using namespace layouts;
using namespace noise_tests;

// ---- averages over a run --------------------------------------------------------------------------------------------

// The averages are exactly those of the recorded squared norms.
TEST_F(NoiseScaleTest, AveragesAreThoseOfTheNormsInTheRecords) {
  for (const std::vector<Change>& changes :
       {std::vector<Change>{ranks(2, 1, 2), zb_h1}, {ranks(4, 1, 1), whole_batch}, {ranks(1, 1, 1), whole_batch}}) {
    const RunConfig run = config(changes);
    std::vector<StepRecord> records;
    train(run, [&](Trainer& trainer, World& world) {
      const std::vector<StepRecord> mine = take_steps(trainer, world, 12);
      if (world.rank() == 0) records = mine;
    });
    Replay replay(run);
    for (const StepRecord& record : records) {
      replay.add(record);
      expect_noise_scale(record, replay.noise_scale());
    }
    const StepRecord& last = records.back();
    ASSERT_TRUE(last.noise_scale && last.noise_scale_tokens && last.critical_batch && last.statistical_efficiency);
    EXPECT_DOUBLE_EQ(*last.noise_scale_tokens, *last.noise_scale * 16);
    EXPECT_DOUBLE_EQ(*last.critical_batch, *last.noise_scale * run.noise_scale.calibration);
    EXPECT_DOUBLE_EQ(*last.statistical_efficiency, (*last.critical_batch + 1) / (*last.critical_batch + 8));
    ASSERT_TRUE(last.goodput);
    EXPECT_DOUBLE_EQ(*last.goodput, last.tokens_per_second / 16 * *last.statistical_efficiency);
  }
}

TEST_F(NoiseScaleTest, ACheckpointTakesTheAveragesIntoAnyLayout) {
  constexpr int64_t half = 32, rest = 16;
  const std::vector<Change> base = {tied, kv_heads(1)};
  const std::vector<Change> written_in = {ranks(2, 2, 1), micro_batch(2), zero_1};
  std::vector<StepRecord> before, uninterrupted;
  train(config(join(base, written_in)), [&](Trainer& trainer, World& world) {
    const std::vector<StepRecord> first = take_steps(trainer, world, half);
    const std::optional<Snapshot> snapshot = take_snapshot(trainer);
    const std::vector<StepRecord> second = take_steps(trainer, world, rest);
    write_checkpoint(snapshot);
    if (world.rank() != 0) return;
    before = first;
    uninterrupted = second;
  });
  ASSERT_TRUE(before.back().noise_scale.has_value());
  double largest_change = 0;  // by one step
  for (size_t step = before.size() - 4; step < before.size(); ++step) {
    ASSERT_TRUE(before[step].noise_scale && before[step - 1].noise_scale);
    largest_change = std::max(largest_change, std::abs(*before[step].noise_scale - *before[step - 1].noise_scale));
  }

  const Checkpoint checkpoint = read_checkpoint();
  const auto resume = [&](const std::vector<Change>& layout) {
    const RunConfig changed = config(join(base, layout));
    std::vector<StepRecord> records;
    train(changed, [&](Trainer& trainer, World& world) {
      trainer.restore(checkpoint);
      const std::vector<StepRecord> mine = take_steps(trainer, world, rest);
      if (world.rank() == 0) records = mine;
    });
    Replay replay(changed);
    replay.add(before);
    for (const StepRecord& record : records) {
      replay.add(record);
      expect_noise_scale(record, replay.noise_scale());
    }
    return records;
  };

  for (const std::vector<Change>& same : {written_in, {ranks(2, 2, 2), micro_batch(2), zb_h1}}) {
    const std::vector<StepRecord> resumed = resume(same);
    for (size_t step = 0; step < resumed.size(); ++step) {
      SCOPED_TRACE(concat("step ", step + 1, " after"));
      EXPECT_EQ(resumed[step].small_batch_squared_norm, uninterrupted[step].small_batch_squared_norm);
      EXPECT_EQ(resumed[step].noise_scale, uninterrupted[step].noise_scale);
      EXPECT_EQ(resumed[step].noise_scale_low, uninterrupted[step].noise_scale_low);
      EXPECT_EQ(resumed[step].noise_scale_high, uninterrupted[step].noise_scale_high);
    }
  }
  // Training continues equal to rounding, and bitwise with equal micro-batches.
  const std::vector<StepRecord> rounded = resume({ranks(2, 4, 1), micro_batch(2), sequence_parallel});
  for (size_t step = 0; step < rounded.size(); ++step) {
    ASSERT_TRUE(rounded[step].noise_scale && uninterrupted[step].noise_scale);
    expect_close(*rounded[step].noise_scale, *uninterrupted[step].noise_scale, 1e-5);
  }
  for (const std::vector<Change>& other : {std::vector<Change>{ranks(4, 1, 2), micro_batch(1), interleaved},
                                           {ranks(1, 1, 1), micro_batch(4)},
                                           {ranks(4, 2, 1), whole_batch, zero_1},
                                           {ranks(4, 1, 1), micro_batch(1), zero_3},
                                           {ranks(1, 2, 2), whole_batch, zb_h1}}) {
    const std::vector<StepRecord> resumed = resume(other);
    ASSERT_TRUE(resumed.front().noise_scale.has_value());
    EXPECT_LT(std::abs(*resumed.front().noise_scale - *before.back().noise_scale), 3 * largest_change);
    for (size_t step = 0; step < resumed.size(); ++step) {
      SCOPED_TRACE(concat("layout ", to_string(resumed[step].strategy), ", step ", step + 1, " after"));
      // Layouts measure different small batches, and some estimates are less precise: the intervals overlap.
      ASSERT_TRUE(resumed[step].noise_scale_high && uninterrupted[step].noise_scale_high);
      EXPECT_GT(*resumed[step].noise_scale_high, *uninterrupted[step].noise_scale_low);
      EXPECT_LT(*resumed[step].noise_scale_low, *uninterrupted[step].noise_scale_high);
    }
  }
}

// Numbers per sample do not change with the batch.
TEST_F(NoiseScaleTest, ACheckpointGoesOnWithAnotherGlobalBatch) {
  const RunConfig small = config({ranks(2, 1, 1)}), large = config({ranks(2, 1, 2), global_batch(32), micro_batch(4)});
  Replay replay(small);
  train(small, [&](Trainer& trainer, World& world) {
    const std::vector<StepRecord> records = take_steps(trainer, world, 6);
    write_checkpoint(take_snapshot(trainer));
    if (world.rank() == 0) replay.add(records);
  });
  const Checkpoint checkpoint = read_checkpoint();
  train(large, [&](Trainer& trainer, World& world) {
    trainer.restore(checkpoint);
    const std::vector<StepRecord> records = take_steps(trainer, world, 3);
    if (world.rank() != 0) return;
    for (const StepRecord& record : records) {
      replay.add(record);
      expect_noise_scale(record, replay.noise_scale());
    }
  });
}

// The step's number decides whether it is split, so a resumed run splits the same steps.
TEST_F(NoiseScaleTest, ResumedRunsCutTheSameStepsInTwo) {
  const RunConfig run = config({tied, whole_batch, [](RunConfig& config) { config.noise_scale.split_interval = 3; }});
  std::vector<StepRecord> uninterrupted;
  train(run, [&](Trainer& trainer, World& world) {
    take_steps(trainer, world, 10);
    write_checkpoint(take_snapshot(trainer));
    uninterrupted = take_steps(trainer, world, 6);
  });
  train(run, [&](Trainer& trainer, World& world) {
    trainer.restore(read_checkpoint());
    for (const StepRecord& expected : uninterrupted) {
      const StepRecord record = step_alike(trainer, world);
      EXPECT_EQ(record.small_batch.has_value(), record.step % 3 == 0);
      EXPECT_EQ(record.loss, expected.loss);
      EXPECT_EQ(record.small_batch_squared_norm, expected.small_batch_squared_norm);
      EXPECT_TRUE(record.noise_scale_low.has_value());
      EXPECT_EQ(record.noise_scale_low, expected.noise_scale_low);
      EXPECT_EQ(record.noise_scale, expected.noise_scale);
    }
  });
}

TEST_F(NoiseScaleTest, AStepThatIsNotFiniteChangesNoAverage) {
  for (const std::vector<Change>& layout : {std::vector<Change>{ranks(2, 1, 2), zb_h1, zero_1},
                                            {ranks(2, 1, 2), whole_batch},
                                            {ranks(2, 2, 1), micro_batch(1), sequence_parallel}}) {
    const RunConfig run = config(join({tied}, layout));
    Replay replay(run);
    train(run, [&](Trainer& trainer, World& world) {
      const std::vector<StepRecord> good = take_steps(trainer, world, 5);
      ParameterStore& parameters = trainer.parameters();
      // The first rank that holds other samples; only its gradient is made not finite.
      const bool is_broken = world.rank() == run.parallel.tensor_parallel;
      at::Tensor norm, saved;
      if (is_broken) {
        norm = parameters.find("model.layers.0.input_layernorm.weight").weight;
        saved = norm.clone();
        norm.fill_(std::numeric_limits<double>::infinity());
      }
      const NoiseAverage average = trainer.state().noise_average;
      const StepRecord broken = step_alike(trainer, world);
      EXPECT_FALSE(std::isfinite(broken.loss));
      EXPECT_EQ(trainer.state().skipped_steps, 1);
      EXPECT_EQ(broken.small_batch, std::nullopt);
      EXPECT_TRUE(trainer.state().noise_average == average);
      EXPECT_EQ(broken.noise_scale, good.back().noise_scale);
      EXPECT_EQ(broken.noise_scale_low, good.back().noise_scale_low);
      EXPECT_EQ(broken.noise_scale_high, good.back().noise_scale_high);

      if (is_broken) norm.copy_(saved);
      const StepRecord again = step_alike(trainer, world);
      EXPECT_TRUE(std::isfinite(again.loss));
      if (world.rank() != 0) return;
      replay.add(good);
      replay.add(again);
      expect_noise_scale(again, replay.noise_scale());
    });
  }
}

// One step in twenty has ten times the gradient, and a hundred times the squared norms. These would raise a plain
// average sixfold.
TEST_F(NoiseScaleTest, AnOutlierDoesNotTakeOver) {
  RunConfig run = config({ranks(2, 1, 1), tied});
  run.optimizer.lr = 1e-30;
  const Weights weights(run.model);
  Replay replay(run);
  train(run, [&](Trainer& trainer, World& world) {
    trainer.load(weights.views());
    const std::vector<StepRecord> good = take_steps(trainer, world, 20);
    ParameterStore& parameters = trainer.parameters();
    const at::Tensor norm = parameters.find("model.norm.weight").weight;
    const at::Tensor saved = norm.clone();
    norm.mul_(10);
    const StepRecord outlier = step_alike(trainer, world);
    norm.copy_(saved);
    const StepRecord again = step_alike(trainer, world);
    if (world.rank() != 0) return;
    EXPECT_GT(outlier.grad_norm, 5 * good.back().grad_norm);
    replay.add(good);
    const double squared_gradient = replay.noise_scale().value().squared_gradient.value;
    const double trace = replay.noise_scale().value().trace.value;
    replay.add(outlier);
    expect_noise_scale(outlier, replay.noise_scale());
    EXPECT_LT(replay.noise_scale().value().squared_gradient.value, 2 * squared_gradient);
    EXPECT_LT(replay.noise_scale().value().trace.value, 2 * trace);
    replay.add(again);
    expect_noise_scale(again, replay.noise_scale());
  });
}

// ---- switched off ---------------------------------------------------------------------------------------------------

TEST_F(NoiseScaleTest, MeasuringChangesNoBitOfTraining) {
  struct Outcome {
    std::vector<StepRecord> records;
    std::vector<std::vector<float>> weights;
  };
  const auto run = [&](const std::vector<Change>& changes) {
    Outcome outcome;
    train(config(changes), [&](Trainer& trainer, World& world) {
      const std::vector<StepRecord> mine = take_steps(trainer, world, 4);
      const std::optional<Snapshot> snapshot = take_snapshot(trainer);
      if (!snapshot) return;
      outcome.records = mine;
      for (const HostTensor& tensor : snapshot->weights) outcome.weights.push_back(to_float(tensor.view()));
    });
    return outcome;
  };
  const std::vector<Change> base = {tied, kv_heads(1)};
  for (const std::vector<Change>& layout : {std::vector<Change>{ranks(2, 1, 2), zb_h1},
                                            {ranks(1, 2, 2), interleaved, sequence_parallel},
                                            {ranks(4, 1, 1), whole_batch, zero_1},
                                            {ranks(2, 2, 2), whole_batch, sequence_parallel},
                                            {ranks(2, 1, 2), micro_batch(1), zero_3},
                                            {ranks(2, 2, 1), micro_batch(1), sequence_parallel, zero_2},
                                            {ranks(1, 1, 1), micro_batch(1)}}) {
    const Outcome measured = run(join(base, layout)), plain = run(join(base, join(layout, {disabled})));
    ASSERT_EQ(measured.records.size(), plain.records.size());
    for (size_t step = 0; step < plain.records.size(); ++step) {
      SCOPED_TRACE(concat(to_string(plain.records[step].strategy), ", step ", step + 1));
      EXPECT_EQ(measured.records[step].loss, plain.records[step].loss);
      EXPECT_EQ(measured.records[step].grad_norm, plain.records[step].grad_norm);
      EXPECT_TRUE(measured.records[step].small_batch_squared_norm.has_value());
      const StepRecord& off = plain.records[step];
      for (const std::optional<double>& field :
           {off.small_batch, off.small_batch_squared_norm, off.noise_scale, off.noise_scale_low, off.noise_scale_high,
            off.noise_scale_tokens, off.critical_batch, off.statistical_efficiency, off.goodput}) {
        EXPECT_EQ(field, std::nullopt);
      }
    }
    EXPECT_TRUE(measured.weights == plain.weights);
  }
  // A step that is split in two differs only in the order of its sums; steps that are not split are equal.
  const Outcome cut = run({ranks(1, 1, 1), whole_batch}), whole = run({ranks(1, 1, 1), whole_batch, disabled});
  ASSERT_EQ(cut.records.size(), whole.records.size());
  EXPECT_EQ(cut.records[0].loss, whole.records[0].loss);
  EXPECT_EQ(cut.records[0].grad_norm, whole.records[0].grad_norm);
  for (size_t step = 0; step < whole.records.size(); ++step) {
    EXPECT_NEAR(cut.records[step].loss, whole.records[step].loss, 1e-5);
    EXPECT_EQ(cut.records[step].small_batch.has_value(), step % 2 == 1);
    EXPECT_EQ(whole.records[step].small_batch, std::nullopt);
  }
}

}  // namespace
}  // namespace copus
