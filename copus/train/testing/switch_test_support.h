// For tests of runs that change their configuration while they train: the moves, and the result of a run.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "copus/base/testing/test_support.h"
#include "copus/train/testing/take_snapshot.h"
#include "copus/train/testing/test_layouts.h"
#include "copus/train/trainer/trainer.h"

namespace copus::switch_tests {

using layouts::Change;
using layouts::Connect;
using layouts::on_test_device;
using layouts::small_run;
using layouts::train_on_every_rank;
using layouts::with_changes;
using layouts::write_corpus;

using Outcome = SwitchReport::Outcome;

// A change of batches or layout after a step.
struct Move {
  int64_t after_step;
  std::vector<Change> changes;
  double rate_factor = 1;
};

struct History {
  std::vector<StepRecord> records;
  std::vector<SwitchReport> reports;
  std::vector<float> weights;  // at the end
  TrainingState state;

  std::vector<double> losses() const {
    std::vector<double> values;
    for (const StepRecord& record : records) values.push_back(record.loss);
    return values;
  }
};

class TrainerSwitch : public ::testing::Test {
 protected:
  TrainerSwitch() { write_corpus(folder_.path() / "corpus.txt"); }

  RunConfig config(const std::vector<Change>& changes) const {
    RunConfig config = small_run(folder_.path() / "corpus.txt");
    config.model.hidden_size = 32;
    config.model.intermediate_size = 48;
    config.model.num_layers = 4;
    config.model.head_dim = 8;
    config.data.held_out_fraction = 0.02;
    config.train.sequence_length = 16;
    config.train.max_steps = 1000;
    config.optimizer.lr = 3e-3;
    config.adapt.policy = PolicyKind::fixed;
    config.adapt.verify = true;
    return with_changes(config, changes);
  }

  static SwitchIntent intent_of(const RunConfig& config, const Move& move) {
    return {.configuration = configuration_of(with_changes(config, move.changes)),
            .commit_after_step = move.after_step,
            .rate_factor = move.rate_factor,
            .inputs_hash = 0};
  }

  // Trains `steps` steps. Every move is announced early enough that all ranks know of it `lead` steps before it is due.
  static History run(const RunConfig& config, const std::vector<Move>& moves, int64_t steps, int64_t lead = 1,
                     const Connect& connect = on_test_device) {
    History history;
    const auto train = [&](Trainer& trainer, World& world, const Dataset&) {
      History mine;
      for (int64_t step = 0; step < steps; ++step) {
        for (const Move& move : moves) {
          if (world.rank() == 0 && move.after_step - lead == step) trainer.announce(intent_of(config, move));
        }
        mine.records.push_back(trainer.step());
        if (auto report = trainer.switch_if_due()) mine.reports.push_back(*report);
      }
      const std::optional<Snapshot> snapshot = take_snapshot(trainer);
      if (world.rank() != 0) return;
      for (const HostTensor& tensor : snapshot->weights) {
        const std::vector<float> values = to_float(tensor.view());
        mine.weights.insert(mine.weights.end(), values.begin(), values.end());
      }
      mine.state = trainer.state();
      history = std::move(mine);
    };
    train_on_every_rank(config, train, connect);
    return history;
  }

  static void expect_moved(const History& history, size_t count) {
    ASSERT_EQ(history.reports.size(), count);
    for (const SwitchReport& report : history.reports) {
      EXPECT_EQ(report.outcome, Outcome::moved) << report.reason;
      EXPECT_LE(report.peak_bytes, report.peak_bound_bytes);
    }
  }

  static void expect_bitwise(const History& history, const History& expected) {
    EXPECT_EQ(history.losses(), expected.losses());
    EXPECT_TRUE(history.weights == expected.weights);
  }

  TemporaryFolder folder_;
};

// beta2 and weight decay follow the batch; the learning rate changes only by the factors of the moves.
inline const Change scaled = [](RunConfig& config) {
  config.optimizer.batch_scaling = BatchScaling::none;
  config.optimizer.scale_beta2 = config.optimizer.scale_weight_decay = true;
  config.optimizer.reference_batch = 16;
};

}  // namespace copus::switch_tests
