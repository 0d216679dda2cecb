// Runs that change batch, micro-batch and layout while they train, with ranks as threads: they go on as if they had
// always been in the new configuration.
#include <ATen/TensorOperators.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/model/caching_allocator.h"
#include "copus/model/kernels.h"
#include "copus/performance/memory.h"
#include "copus/statistics/efficiency.h"
#include "copus/train/testing/test_layouts.h"
#include "copus/train/trainer.h"

namespace copus {
namespace {

using namespace layouts;

using ::testing::AllOf;
using ::testing::HasSubstr;

using Outcome = SwitchReport::Outcome;

// A change of the batches of a configuration, or of its layout, after a step.
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

  // Trains so many steps. Every move is announced so that all ranks know of it `lead` steps before it is due.
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
      const std::optional<Snapshot> snapshot = trainer.snapshot("");
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

// What else may follow the batch does, while the rate has the factors of its moves alone.
const Change scaled = [](RunConfig& config) {
  config.optimizer.batch_scaling = BatchScaling::none;
  config.optimizer.scale_beta2 = config.optimizer.scale_weight_decay = true;
  config.optimizer.reference_batch = 16;
};
const Change messages = [](RunConfig& config) { config.adapt.policy = PolicyKind::none; };

TEST_F(TrainerSwitch, WhereOnlyTheOrderOfWorkChangesTheRunIsBitwiseTheSame) {
  for (const std::vector<Change>& base : {std::vector<Change>{ranks(2, 1, 2)},
                                          {ranks(2, 1, 2), messages},
                                          {ranks(2, 1, 2), scaled},
                                          {ranks(2, 2, 2), tied, bf16},
                                          {ranks(1, 1, 1), recompute(Recompute::full)}}) {
    const RunConfig begin = config(join(base, {micro_batch(2)}));
    const History expected = run(begin, {}, 9);
    const bool pipelined = begin.parallel.pipeline_parallel > 1;
    const std::vector<Change> chunks = pipelined ? std::vector<Change>{interleaved} : std::vector<Change>{};
    const std::vector<Change> shares =
        begin.parallel.data_parallel > 1 ? std::vector<Change>{zero_1, zb_h1} : std::vector<Change>{gpipe};
    const History moved = run(begin,
                              {{2, join(shares, {recompute(Recompute::attention)})},
                               {4, chunks},
                               {6, join(shares, chunks.empty() ? shares : std::vector<Change>{interleaved, zero_1})},
                               {7, {}}},
                              9);
    expect_moved(moved, 4);
    expect_bitwise(moved, expected);
    EXPECT_EQ(moved.state.consumed_samples, expected.state.consumed_samples);
    EXPECT_EQ(moved.state.optimizer_steps, 9);
  }
}

TEST_F(TrainerSwitch, InOtherLayoutsTheRunIsTheSameToRounding) {
  for (const std::vector<Change>& base : {std::vector<Change>{}, {messages}, {tied}, {biases, kv_heads(1)}}) {
    const RunConfig begin = config(join(base, {ranks(4, 2, 1), micro_batch(1)}));
    const History expected = run(begin, {}, 10);
    const History moved = run(begin,
                              {{1, {ranks(1, 4, 2), sequence_parallel}},
                               {3, {ranks(8, 1, 1), zero_1}},
                               {4, {ranks(2, 1, 4), zb_h1}},
                               {6, {ranks(1, 4, 2), zero_1, micro_batch(2)}},
                               {8, {ranks(4, 1, 2), zero_1, recompute(Recompute::full)}}},
                              10);
    expect_moved(moved, 5);
    ASSERT_EQ(moved.records.size(), expected.records.size());
    for (size_t step = 0; step < expected.records.size(); ++step) {
      EXPECT_NEAR(moved.records[step].loss / expected.records[step].loss, 1, 1e-5) << "step " << step + 1;
      EXPECT_NEAR(moved.records[step].grad_norm / expected.records[step].grad_norm, 1, 1e-3) << "step " << step + 1;
      EXPECT_EQ(moved.records[step].consumed_samples, expected.records[step].consumed_samples);
    }
    EXPECT_EQ(moved.records[1].strategy, "1x4x2");
    EXPECT_TRUE(moved.records[1].switch_seconds.has_value());
    EXPECT_FALSE(moved.records[2].switch_seconds.has_value());
    const double pauses = std::accumulate(moved.reports.begin(), moved.reports.end(), 0.0,
                                          [](double sum, const SwitchReport& one) { return sum + one.pause_seconds; });
    const double steps = std::accumulate(moved.records.begin(), moved.records.end(), 0.0,
                                         [](double sum, const StepRecord& one) { return sum + one.step_seconds; });
    for (const SwitchReport& report : moved.reports) {
      double in_phases = 0;
      for (const auto& [phase, seconds] : report.phase_seconds) in_phases += seconds;
      EXPECT_TRUE(report.phase_seconds.contains("moving the state"));
      EXPECT_GT(in_phases, 0);
      EXPECT_LE(in_phases, report.pause_seconds + 1e-9);
    }
    // Rank 0 has in addition waited for the others to end their steps, on a busy machine for seconds; and where another
    // rank was slower to leave the switch, its pause counts.
    EXPECT_GE(moved.state.elapsed_seconds, steps + pauses - 1e-9);
  }
}

// Sends the same messages, with all memory treated as that of a device which the ranks share.
TEST_F(TrainerSwitch, StateMovesAlikeWhereMemoryTravelsAsADevicesDoes) {
  if (!test_device().is_cpu()) GTEST_SKIP() << "all tests are on a device";
  const RunConfig begin = config({ranks(2, 2, 1), messages, bf16});
  const std::vector<Move> moves = {{1, {ranks(1, 2, 2), sequence_parallel}}, {2, {ranks(4, 1, 1), zero_1}}};
  const History moved = run(begin, moves, 4, 1, as_on_a_device);
  expect_moved(moved, 2);
  expect_bitwise(moved, run(begin, moves, 4));
}

// A run depends on its decisions and their boundaries alone.
TEST_F(TrainerSwitch, TheSameMovesGiveTheSameBits) {
  const std::vector<Move> moves = {{2, {ranks(1, 2, 2), global_batch(16)}, 1.25},
                                   {4, {ranks(4, 1, 1), zero_1, global_batch(4), micro_batch(1)}, 0.5},
                                   {6, {ranks(2, 1, 2), global_batch(32), micro_batch(4)}, 1.75}};
  for (const std::vector<Change>& base : {std::vector<Change>{}, {scaled}}) {
    const RunConfig begin = config(join(base, {ranks(2, 2, 1)}));
    const History first = run(begin, moves, 9);
    expect_moved(first, 3);
    for (const int64_t lead : {1, 2}) {
      const History again = run(begin, moves, 9, lead);
      expect_moved(again, 3);
      expect_bitwise(again, first);
      EXPECT_EQ(again.state.noise_average, first.state.noise_average);
      EXPECT_EQ(again.state.beta2_product, first.state.beta2_product);
      for (size_t step = 0; step < 9; ++step) EXPECT_EQ(again.records[step].lr, first.records[step].lr);
    }
  }
}

// Samples of every step are those after the samples of the steps before it.
TEST_F(TrainerSwitch, NoSampleIsSkippedOrRepeated) {
  const RunConfig begin = config({ranks(2, 1, 1)});
  std::optional<Snapshot> snapshot;
  StepRecord expected;
  train_on_every_rank(begin, [&](Trainer& trainer, World& world, const Dataset&) {
    int64_t consumed = 0;
    const std::vector<Move> moves = {{1, {global_batch(16)}},
                                     {2, {ranks(1, 2, 1), global_batch(4)}},
                                     {3, {ranks(1, 1, 2), global_batch(32), micro_batch(4)}}};
    for (int64_t step = 0; step < 4; ++step) {
      if (world.rank() == 0 && step < 3) trainer.announce(intent_of(begin, moves[static_cast<size_t>(step)]));
      consumed += trainer.configuration().global_batch;
      const StepRecord record = trainer.step();
      EXPECT_EQ(record.consumed_samples, consumed);
      EXPECT_EQ(record.consumed_tokens, consumed * 16);
      if (world.rank() == 0 && step == 3) expected = record;
      trainer.switch_if_due();
      auto now = step == 2 ? trainer.snapshot("") : std::nullopt;
      if (now) snapshot = std::move(now);
    }
    EXPECT_EQ(consumed, 8 + 16 + 4 + 32);
  });
  // A run that never moved goes on from the same point.
  CheckpointWriter writer(folder_.path() / "checkpoints", 1);
  writer.write(std::move(*snapshot));
  writer.finish();
  const Checkpoint checkpoint(*writer.last_written());
  const RunConfig there = config({ranks(1, 1, 2), global_batch(32), micro_batch(4)});
  train_on_every_rank(there, [&](Trainer& trainer, World& world, const Dataset&) {
    trainer.restore(checkpoint);
    EXPECT_EQ(trainer.configuration(), configuration_of(there));
    EXPECT_EQ(trainer.state().consumed_samples, 8 + 16 + 4);
    const StepRecord record = trainer.step();
    if (world.rank() != 0) return;
    EXPECT_EQ(record.loss, expected.loss);
    EXPECT_EQ(record.grad_norm, expected.grad_norm);
  });
}

// The rate has one factor for the batch, and stays below it for a while after the batch has shrunk.
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
  // AdamW's second moments, relative to their value once they have settled at the batch: towards a larger batch they go
  // on rising.
  double ratio = 32 / 8.0;
  for (int i = 0; i < 2; ++i) ratio = 1 - (1 - ratio) * beta2;
  ratio *= 8 / 32.0;
  EXPECT_LT(ratio, 1);
  for (int64_t step = 4; step <= 6; ++step) {
    ratio = 1 - (1 - ratio) * beta2;
    EXPECT_DOUBLE_EQ(at(step), lr * std::sqrt(ratio));
    EXPECT_EQ(history.records[static_cast<size_t>(step - 1)].rate_factor, 1) << "without the ramp";
  }
  EXPECT_DOUBLE_EQ(at(7), lr * 1.125);  // moments that are too large get no correction
}

// AdamW in float64, one logical parameter after the other, from the gradients of a run in changing batches. beta2 and
// weight decay come from what they are to keep: the half-life in samples, and the decay of a sample.
class ReferenceAdamW {
 public:
  ReferenceAdamW(const ParameterStore& parameters, const OptimizerConfig& config) : config_(config) {
    for (const Parameter& parameter : parameters.parameters()) {
      const at::Tensor weight = to_float64(parameters.master(parameter));
      state_.push_back({weight, at::zeros_like(weight), at::zeros_like(weight)});
    }
  }

  // Follows an update of `rate` with the gradients that it has left. `schedule_rate`: what the schedule says at B_ref.
  void follow(const ParameterStore& parameters, double gradient_factor, double batch, double rate,
              double schedule_rate) {
    const double share = batch / static_cast<double>(config_.reference_batch);
    const double beta2 = std::pow(config_.beta2, share);
    first_product_ *= config_.beta1;
    second_product_ *= beta2;
    for (size_t p = 0; p < state_.size(); ++p) {
      const Parameter& parameter = parameters.parameters()[p];
      auto& [weight, first, second] = state_[p];
      const at::Tensor gradient = to_float64(parameter.gradient) * gradient_factor;
      first = config_.beta1 * first + (1 - config_.beta1) * gradient;
      second = beta2 * second + (1 - beta2) * gradient * gradient;
      const bool decays =
          parameter.info.kind == ParameterKind::embedding || parameter.info.kind == ParameterKind::linear;
      if (decays) weight = weight * (1 - schedule_rate * config_.weight_decay * share);
      weight =
          weight - rate * (first / (1 - first_product_)) / (at::sqrt(second / (1 - second_product_)) + config_.epsilon);
    }
  }

  double largest_difference(const ParameterStore& parameters) const {
    double largest = 0;
    for (size_t p = 0; p < state_.size(); ++p) {
      const at::Tensor weight = to_float64(parameters.master(parameters.parameters()[p]));
      largest = std::max(largest, (weight - state_[p].weight).abs().max().item<double>());
    }
    return largest;
  }

 private:
  struct State {
    at::Tensor weight, first, second;
  };

  static at::Tensor to_float64(const at::Tensor& tensor) { return tensor.to(at::kCPU).to(at::kDouble); }

  OptimizerConfig config_;
  std::vector<State> state_;
  double first_product_ = 1, second_product_ = 1;
};

// Rates follow no rule here, as with a policy that has factors of its own; the last batch is a smaller one, whose rate
// is lower at first.
TEST_F(TrainerSwitch, Beta2AndWeightDecayFollowTheBatch) {
  RunConfig begin = config({ranks(1, 1, 1), scaled});
  begin.optimizer.schedule = LearningRateSchedule::constant;
  begin.optimizer.weight_decay = 0.5;
  const std::vector<Move> moves = {{2, {global_batch(32)}, 1.75}, {4, {global_batch(4)}, 0.75}};
  const double lr = begin.optimizer.lr;
  train_on_every_rank(begin, [&](Trainer& trainer, World&, const Dataset&) {
    ReferenceAdamW reference(trainer.parameters(), begin.optimizer);
    double ratio = 1;  // of the second moments
    for (int64_t step = 1; step <= 7; ++step) {
      for (const Move& move : moves) {
        if (move.after_step == step) trainer.announce(intent_of(begin, move));
      }
      const auto batch = static_cast<double>(trainer.configuration().global_batch);
      const StepRecord record = trainer.step();
      ratio = 1 - (1 - ratio) * std::pow(begin.optimizer.beta2, batch / 16);
      const double rate = lr * record.rate_factor.value() * std::sqrt(std::min(1.0, ratio));
      EXPECT_DOUBLE_EQ(record.lr, rate) << "step " << step;
      reference.follow(trainer.parameters(), clip_factor(record.grad_norm, begin.train.clip_norm), batch, rate, lr);
      // Weights are below 2, and each of the seven updates rounds them to fp32 twice, by 6e-8 at most.
      EXPECT_LT(reference.largest_difference(trainer.parameters()), 1e-6) << "step " << step;
      if (trainer.switch_if_due()) ratio *= static_cast<double>(trainer.configuration().global_batch) / batch;
    }
    EXPECT_LT(ratio, 1) << "the ramp was under way";
    EXPECT_DOUBLE_EQ(trainer.state().beta2_product.value(),
                     std::pow(begin.optimizer.beta2, (2 * 8 + 2 * 32 + 3 * 4) / 16.0));
  });
}

TEST_F(TrainerSwitch, AResumedRunGoesOnWithItsProductOfBeta2) {
  RunConfig begin = config({ranks(1, 1, 1), scaled});
  begin.optimizer.schedule = LearningRateSchedule::constant;  // another batch would change a run of so many steps
  std::optional<Snapshot> snapshot;
  std::vector<double> losses;
  double product = 1;
  train_on_every_rank(begin, [&](Trainer& trainer, World&, const Dataset&) {
    trainer.announce(intent_of(begin, {1, {global_batch(32)}, 1.5}));
    for (int step = 0; step < 5; ++step) {
      const double loss = trainer.step().loss;
      trainer.switch_if_due();
      if (step == 1) snapshot = trainer.snapshot("");
      if (step > 1) losses.push_back(loss);
    }
    product = trainer.state().beta2_product.value();
  });
  const RunConfig larger = with_changes(begin, {global_batch(32)});
  const auto resume = [&](const char* folder, const std::function<void(Trainer&)>& body) {
    CheckpointWriter writer(folder_.path() / folder, 1);
    writer.write(Snapshot(*snapshot));
    writer.finish();
    const Checkpoint checkpoint(*writer.last_written());
    train_on_every_rank(larger, [&](Trainer& trainer, World&, const Dataset&) {
      trainer.restore(checkpoint);
      body(trainer);
    });
  };
  resume("own", [&](Trainer& trainer) {
    for (const double loss : losses) EXPECT_EQ(trainer.step().loss, loss);
    EXPECT_EQ(trainer.state().beta2_product, product);
  });
  // All updates of a checkpoint that has no product had the configuration's beta2.
  std::string& state = snapshot->training_state;
  const size_t name = state.find("\"beta2_product\"");
  ASSERT_NE(name, std::string::npos);
  state.erase(name, state.find(',', name) + 1 - name);
  resume("older",
         [&](Trainer& trainer) { EXPECT_EQ(trainer.state().beta2_product, std::pow(begin.optimizer.beta2, 2)); });
}

// A run that begins in another batch than the one that its rate is for has the rate for its own batch.
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

// Rank 0 tells the others with the next step's agreement, whose update counts with it already.
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
    std::optional<Snapshot> now = trainer.snapshot("");
    if (now) snapshot = std::move(now);
    announce(1.25);
    for (int step = 0; step < 2; ++step) {
      const StepRecord record = trainer.step();
      EXPECT_EQ(record.lr, begin.optimizer.lr * 1.25);
      if (world.rank() == 0) losses.push_back(record.loss);
    }
  });
  CheckpointWriter writer(folder_.path() / "checkpoints", 1);
  writer.write(std::move(*snapshot));
  writer.finish();
  const Checkpoint checkpoint(*writer.last_written());
  // A run that goes on from the checkpoint has its factor, and is told the next one again.
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
  // In another batch it has the factor of a run that begins there: the old one was for another batch.
  RunConfig larger = with_changes(begin, {global_batch(32)});
  larger.optimizer.reference_batch = 8;
  train_on_every_rank(larger, [&](Trainer& trainer, World&, const Dataset&) {
    trainer.restore(checkpoint);
    EXPECT_EQ(trainer.state().rate_factor, 2);
  });
}

// Checkpoints of the version before hold the critical batch that its factor sqrt(min(B, max(B_ref, B_c)) / B_ref) was
// computed with; 0 where it was not known.
TEST_F(TrainerSwitch, ARunGoesOnWithTheRateOfACheckpointThatHasNoFactor) {
  RunConfig begin = config({ranks(1, 1, 1), global_batch(32)});
  begin.optimizer.reference_batch = 8;
  int64_t number = 0;
  for (const auto& [critical, factor] : {std::pair{"18", 1.5}, {"4", 1.0}, {"0", 2.0}, {"1e9", 2.0}}) {
    std::optional<Snapshot> snapshot;
    train_on_every_rank(begin, [&](Trainer& trainer, World&, const Dataset&) {
      trainer.step();
      snapshot = trainer.snapshot("");
    });
    std::string& state = snapshot->training_state;
    const size_t name = state.find("\"rate_factor\"");
    ASSERT_NE(name, std::string::npos);
    state.replace(name, state.find(',', name) - name, concat("\"critical_batch\": ", critical));
    CheckpointWriter writer(folder_.path() / concat("checkpoints", ++number), 1);
    writer.write(std::move(*snapshot));
    writer.finish();
    const Checkpoint checkpoint(*writer.last_written());
    train_on_every_rank(begin, [&](Trainer& trainer, World&, const Dataset&) {
      trainer.restore(checkpoint);
      EXPECT_EQ(trainer.state().rate_factor, factor) << critical;
      EXPECT_EQ(trainer.state().critical_batch, std::nullopt);
    });
  }
}

// The learning rate's factor that a decision has counted with for one of the candidates that it lists: taken out of its
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

// Holds the two together that must agree: the rate that Goodput counted with when it chose, and the one that the
// trainer's updates then have.
TEST_F(TrainerSwitch, TheRateOfTheUpdatesIsTheOneThatGoodputCountedWith) {
  RunConfig begin = config({ranks(1, 1, 1)});
  begin.optimizer.schedule = LearningRateSchedule::constant;
  begin.optimizer.reference_batch = 4;
  begin.cluster.clock = ClockKind::virtual_time;
  begin.cluster.description.flops_per_second = 1e9;
  begin.adapt.policy = PolicyKind::copus;
  begin.adapt.global_batches = {4, 8, 16, 32, 64};  // with one micro-batch: as many candidates as a decision lists
  begin.adapt.micro_batches = {begin.train.micro_batch};
  begin.adapt.interval_samples = begin.adapt.dwell_samples = 32;
  begin.adapt.dwell_steps = 0;
  begin.adapt.alpha = 0.5;  // the rate is read off the Goodput of the candidates
  int switches = 0, followed = 0;
  train_on_every_rank(begin, [&](Trainer& trainer, World&, const Dataset&) {
    Controller controller(begin, configuration_of(begin), Knowledge());
    double expected = std::sqrt(2.0), announced = expected;  // of this step, and from the switch under way on
    for (int64_t step = 1; step <= 60; ++step) {
      const StepRecord record = trainer.step();
      ASSERT_NEAR(*record.rate_factor, expected, 1e-9) << "step " << step;
      ASSERT_LE(record.lr, begin.optimizer.lr * expected * (1 + 1e-9));
      // Lets the noise scale grow and then fall, and large batches be fast, so that the batch grows and the cap
      // follows.
      const double phi = step < 40 ? 4 + 0.5 * static_cast<double>(step) : 5;
      Observation seen = observation_of(record, begin);
      seen.noise_scale = seen.noise_scale_low = seen.noise_scale_high = phi;
      seen.step_seconds = 1 + 0.001 * static_cast<double>(record.global_batch);    // whatever the machine is doing
      seen.elapsed_seconds = seen.seconds_left = 1e6 + static_cast<double>(step);  // time enough for a move to pay
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

MemoryModel memory_model(const RunConfig& config) {
  return {config.model, config.train.sequence_length, copus_in_fp32()};
}

TEST_F(TrainerSwitch, AConfigurationThatCannotBeIsVetoedAndTheRunGoesOn) {
  RunConfig begin = config({ranks(1, 1, 2)});
  const Configuration small = configuration_of(begin);
  const RunConfig to = with_changes(begin, {ranks(2, 1, 1)});
  MemoryModel memory = memory_model(begin);
  const double needs = memory.predict(small).parts.total(),
               would_need = memory.predict(configuration_of(to)).parts.total();
  ASSERT_LT(needs, would_need);
  begin.cluster.description.device.memory_bytes = (needs + would_need) / 2;
  const History expected = run(begin, {}, 5);
  const History vetoed = run(begin, {{2, {ranks(2, 1, 1)}}}, 5);
  ASSERT_EQ(vetoed.reports.size(), 1);
  EXPECT_EQ(vetoed.reports[0].outcome, Outcome::vetoed);
  EXPECT_THAT(vetoed.reports[0].reason, HasSubstr("needs"));
  EXPECT_EQ(vetoed.reports[0].is_lack_of_memory, true);
  expect_bitwise(vetoed, expected);

  train_on_every_rank(begin, [&](Trainer& trainer, World& world, const Dataset&) {
    SwitchIntent intent{.configuration = small, .commit_after_step = 1, .rate_factor = 1, .inputs_hash = 0};
    intent.configuration.global_batch = 7;
    if (world.rank() == 0) trainer.announce(intent);
    trainer.step();
    const std::optional<SwitchReport> report = trainer.switch_if_due();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->outcome, Outcome::vetoed);
    EXPECT_THAT(report->reason, HasSubstr("train.global_batch 7"));
    EXPECT_EQ(report->is_lack_of_memory, false);
    EXPECT_EQ(trainer.configuration(), small);
    trainer.step();
  });
}

// The layout is there but its activations do not fit: everything goes back.
TEST_F(TrainerSwitch, ALayoutThatRunsOutOfMemoryIsRolledBack) {
  install_caching_allocator();
  const RunConfig begin = config({ranks(2, 1, 2), global_batch(64), micro_batch(1), recompute(Recompute::full)});
  const std::vector<Change> larger = {ranks(1, 1, 4), micro_batch(64), recompute(Recompute::none)};
  const Configuration to = configuration_of(with_changes(begin, larger));
  const auto beside_state = [&](const Configuration& configuration) {
    const MemoryParts parts = memory_model(begin).predict(configuration).parts;
    return parts.activations + parts.logits + parts.workspace;
  };
  ASSERT_LT(8 * beside_state(configuration_of(begin)), beside_state(to));
  const History expected = run(begin, {}, 5);

  History history;
  train_on_every_rank(begin, [&](Trainer& trainer, World& world, const Dataset&) {
    for (int64_t step = 0; step < 5; ++step) {
      if (world.rank() == 0 && step == 1) trainer.announce(intent_of(begin, {2, larger}));
      const StepRecord record = trainer.step();
      world.everyone().barrier();
      if (world.rank() == 0) {
        set_host_memory_limit(host_memory().used_bytes + static_cast<int64_t>(0.6 * beside_state(to)));
      }
      world.everyone().barrier();
      const std::optional<SwitchReport> report = trainer.switch_if_due();
      world.everyone().barrier();
      set_host_memory_limit(0);
      if (world.rank() != 0) continue;
      history.records.push_back(record);
      if (report) history.reports.push_back(*report);
    }
    EXPECT_EQ(trainer.configuration(), configuration_of(begin));
  });
  ASSERT_EQ(history.reports.size(), 1);
  EXPECT_EQ(history.reports[0].outcome, Outcome::rolled_back);
  EXPECT_THAT(history.reports[0].reason, AllOf(HasSubstr("rank "), HasSubstr("no memory")));
  EXPECT_EQ(history.reports[0].is_lack_of_memory, true);
  EXPECT_EQ(history.losses(), expected.losses());
}

// A larger micro-batch alone leaves nothing to roll back.
TEST_F(TrainerSwitch, AMicroBatchThatDoesNotFitIsVetoed) {
  install_caching_allocator();
  const RunConfig begin = config({ranks(1, 1, 2), global_batch(64), micro_batch(1), recompute(Recompute::full)});
  const Configuration to = configuration_of(with_changes(begin, {micro_batch(64)}));
  const MemoryParts needed = memory_model(begin).predict(to).parts;
  const double beside_state = needed.activations + needed.logits + needed.workspace;
  const History expected = run(begin, {}, 4);
  std::vector<double> losses;
  train_on_every_rank(begin, [&](Trainer& trainer, World& world, const Dataset&) {
    for (int64_t step = 0; step < 4; ++step) {
      if (world.rank() == 0 && step == 1) trainer.announce(intent_of(begin, {2, {micro_batch(64)}}));
      const StepRecord record = trainer.step();
      world.everyone().barrier();
      set_host_memory_limit(host_memory().used_bytes + static_cast<int64_t>(0.4 * beside_state));
      world.everyone().barrier();
      const std::optional<SwitchReport> report = trainer.switch_if_due();
      world.everyone().barrier();
      set_host_memory_limit(0);
      EXPECT_EQ(report.has_value(), step == 1);
      if (report) {
        EXPECT_EQ(report->outcome, Outcome::vetoed);
        EXPECT_THAT(report->reason, AllOf(HasSubstr("rank "), HasSubstr("no memory")));
        EXPECT_EQ(report->is_lack_of_memory, true);
      }
      EXPECT_EQ(trainer.configuration(), configuration_of(begin));
      if (world.rank() == 0) losses.push_back(record.loss);
    }
  });
  EXPECT_EQ(losses, expected.losses());
}

// A world of one rank that notes the expected durations of its steps.
class ExpectingWorld final : public WrappedWorld, private Health {
 public:
  ExpectingWorld() : WrappedWorld(single_rank_world()) {}
  Health& health() override { return *this; }

  std::vector<double> expected;  // as each step begins, and 0 as it ends

 private:
  void set_place(std::string_view /*place*/) override {}
  void set_expected_step_seconds(double seconds) override { expected.push_back(seconds); }
  void begin_wait() override {}
  void end_wait() override {}
  void report(const FailureReport& /*report*/) override {}
  std::optional<FailureReport> failure() const override { return std::nullopt; }
};

// An expectation would make the first long step of a large batch count as one that has stalled.
TEST_F(TrainerSwitch, NothingIsExpectedOfTheFirstStepInAnotherConfiguration) {
  const RunConfig begin = config({ranks(1, 1, 1)});
  const Dataset dataset = open_data(begin);
  ExpectingWorld world;
  Trainer trainer(begin, dataset, test_device(), world);
  trainer.step();
  trainer.announce(intent_of(begin, {2, {micro_batch(8)}}));
  for (int i = 0; i < 3; ++i) {
    trainer.step();
    trainer.switch_if_due();
  }
  ASSERT_EQ(world.expected.size(), 8);
  EXPECT_EQ(world.expected[0], 0);
  EXPECT_GT(world.expected[2], 0);
  EXPECT_EQ(world.expected[4], 0);
  EXPECT_GT(world.expected[6], 0);
}

TEST_F(TrainerSwitch, EvaluationAndCheckpointsFollow) {
  const auto never = [] { return StopReason::none; };
  RunConfig begin = config({ranks(2, 1, 2)});
  begin.evaluate.max_batches = 1;  // the same samples in micro-batches of another size
  std::optional<double> expected;
  train_on_every_rank(begin, [&](Trainer& trainer, World& world, const Dataset&) {
    for (int i = 0; i < 2; ++i) trainer.step();
    const auto loss = trainer.held_out_loss(never);
    if (world.rank() == 0) expected = loss;
  });
  train_on_every_rank(begin, [&](Trainer& trainer, World& world, const Dataset&) {
    trainer.step();
    if (world.rank() == 0) trainer.announce(intent_of(begin, {2, {ranks(1, 2, 2), micro_batch(4)}}));
    trainer.step();
    trainer.held_out_loss(never);  // its last messages may still be under way
    ASSERT_TRUE(trainer.switch_if_due().has_value());
    EXPECT_NEAR(trainer.held_out_loss(never).value() / *expected, 1, 1e-5);
    const std::optional<Snapshot> snapshot = trainer.snapshot("");
    if (world.rank() != 0) return;
    EXPECT_EQ(parse_training_state(snapshot->training_state, "").configuration, trainer.configuration());
    EXPECT_EQ(trainer.configuration().micro_batch, 4);
  });
}

}  // namespace
}  // namespace copus
