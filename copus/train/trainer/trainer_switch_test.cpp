// Runs that change batch, micro-batch and layout while they train, with ranks as threads. They continue as if they had
// always been in the new configuration.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/checkpoint/checkpoint.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/train/testing/switch_test_support.h"
#include "copus/train/testing/take_snapshot.h"

namespace copus {
namespace {

using namespace layouts;
using namespace switch_tests;

const Change messages = [](RunConfig& config) { config.adapt.policy = PolicyKind::none; };
// One micro-batch on each of two data-parallel ranks.
const Change whole_share = [](RunConfig& config) { config.train.micro_batch = config.train.global_batch / 2; };

TEST_F(TrainerSwitch, WhereOnlyTheOrderOfWorkChangesTheRunIsBitwiseTheSame) {
  for (const std::vector<Change>& base : {std::vector<Change>{ranks(2, 1, 2)},
                                          {ranks(2, 1, 2), messages},
                                          {ranks(2, 1, 2), scaled},
                                          {ranks(2, 1, 2), signum},
                                          {ranks(2, 1, 2), muon},
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
  for (const std::vector<Change>& base : {std::vector<Change>{},
                                          {messages},
                                          {tied},
                                          {biases_everywhere, kv_heads(1)},
                                          {normalized_heads},
                                          {like_gpt2, tied},
                                          {normalized_outputs_and_projections},
                                          {windows_in_some_layers},
                                          {multipliers},
                                          {like_gemma3, tied},
                                          {like_gemma2, tied},
                                          {like_gpt_neox},
                                          {free_parts}}) {
    const RunConfig begin = config(join(base, {ranks(4, 2, 1), micro_batch(1)}));
    const History expected = run(begin, {}, 10);
    const History moved = run(begin,
                              {{1, {ranks(1, 4, 2), sequence_parallel}},
                               {3, {ranks(8, 1, 1), zero_1}},
                               {4, {ranks(2, 1, 4), zb_h1}},
                               {6, {ranks(1, 4, 2), zero_1, micro_batch(2)}},
                               {7, {ranks(4, 2, 1), zero_3, sequence_parallel}},
                               {8, {ranks(4, 1, 2), zero_2, recompute(Recompute::full)}}},
                              10);
    expect_moved(moved, 6);
    ASSERT_EQ(moved.records.size(), expected.records.size());
    for (size_t step = 0; step < expected.records.size(); ++step) {
      EXPECT_NEAR(moved.records[step].loss / expected.records[step].loss, 1, 1e-5) << "step " << step + 1;
      EXPECT_NEAR(moved.records[step].grad_norm / expected.records[step].grad_norm, 1, 1e-3) << "step " << step + 1;
      EXPECT_EQ(moved.records[step].consumed_samples, expected.records[step].consumed_samples);
    }
    EXPECT_EQ(to_string(layout_of(moved.records[1].strategy)), "d=1,t=4,p=2");
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
    // Rank 0's clock also counts its wait for the others to end their steps, seconds on a busy machine, and a longer
    // pause on another rank.
    EXPECT_GE(moved.state.elapsed_seconds, steps + pauses - 1e-9);
  }
}

// With one micro-batch on each rank all ZeRO stages form the same sums, so a run may switch between them freely.
TEST_F(TrainerSwitch, BetweenTheStagesOfZeroTheRunIsBitwiseTheSame) {
  for (const std::vector<Change>& base : {std::vector<Change>{tied}, {messages}, {tied, bf16}, {bf16, messages}}) {
    const RunConfig begin = config(join(base, {ranks(2, 1, 2), whole_share}));
    const History moved = run(begin,
                              {{1, {zero_3}},
                               {2, {zero_1}},
                               {3, {zero_2, zb_h1}},
                               {4, {zero_3_keeping, gpipe}},
                               {6, {zero(0)}},
                               {7, {zero_3}}},
                              9);
    expect_moved(moved, 6);
    expect_bitwise(moved, run(begin, {}, 9));
  }
}

// Sends the same messages, with all memory treated as memory of a device that the ranks share.
TEST_F(TrainerSwitch, StateMovesAlikeWhereMemoryTravelsAsADevicesDoes) {
  if (!test_device().is_cpu()) GTEST_SKIP() << "all tests are on a device";
  const RunConfig begin = config({ranks(2, 2, 1), messages, bf16});
  const std::vector<Move> moves = {
      {1, {ranks(1, 2, 2), sequence_parallel}}, {2, {ranks(4, 1, 1), zero_1}}, {3, {ranks(4, 1, 1), zero_3}}};
  const History moved = run(begin, moves, 5, 1, as_on_a_device);
  expect_moved(moved, 3);
  expect_bitwise(moved, run(begin, moves, 5));
}

// Without adapt.verify, whose hash would wait for the gathers.
TEST_F(TrainerSwitch, WeightsThatAreBeingGatheredAreWholeBeforeTheyMove) {
  if (!test_device().is_cpu()) GTEST_SKIP() << "all tests are on a device";
  const auto unverified = [](RunConfig& config) { config.adapt.verify = false; };
  const RunConfig begin = config({ranks(4, 1, 1), zero_1, messages, unverified});
  const std::vector<Move> moves = {{2, {ranks(2, 2, 1), zero(0)}}, {4, {ranks(4, 1, 1), zero_1}}};
  const History moved = run(begin, moves, 6, 1, as_on_a_device);
  expect_moved(moved, 2);
  expect_bitwise(moved, run(begin, moves, 6));
}

// A run depends only on its decisions and their boundaries.
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
      EXPECT_EQ(again.state.optimizer, first.state.optimizer);
      for (size_t step = 0; step < 9; ++step) EXPECT_EQ(again.records[step].lr, first.records[step].lr);
    }
  }
}

// Every step reads the samples that follow those of the previous step.
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
      auto now = step == 2 ? take_snapshot(trainer) : std::nullopt;
      if (now) snapshot = std::move(now);
    }
    EXPECT_EQ(consumed, 8 + 16 + 4 + 32);
  });
  // A run that never moved continues from the same point.
  CheckpointWriter writer(folder_.path() / "checkpoints", 1);
  writer.write(*snapshot);
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

// A world of one rank that records the expected durations of its steps.
class ExpectingWorld final : public WrappedWorld, private Health {
 public:
  ExpectingWorld() : WrappedWorld(single_rank_world()) {}
  Health& health() override { return *this; }

  std::vector<double> expected;  // set as each step begins, and 0 as it ends

 private:
  void set_place(std::string_view /*place*/) override {}
  void set_expected_step_seconds(double seconds) override { expected.push_back(seconds); }
  void begin_wait() override {}
  void end_wait() override {}
  void report(const FailureReport& /*report*/) override {}
  std::optional<FailureReport> failure() const override { return std::nullopt; }
};

// With an expectation the first long step of a large batch would count as stalled.
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
  begin.evaluate.max_batches = 1;  // the same samples, in micro-batches of another size
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
    const std::optional<Snapshot> snapshot = take_snapshot(trainer);
    if (world.rank() != 0) return;
    EXPECT_EQ(parse_training_state(snapshot->training_state, "").configuration, trainer.configuration());
    EXPECT_EQ(trainer.configuration().micro_batch, 4);
  });
}

}  // namespace
}  // namespace copus
