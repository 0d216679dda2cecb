// Runs the same training in every layout, with ranks as threads. Results are bitwise equal if layouts differ only in
// pipeline, virtual stages, schedule, ZeRO and recompute, and equal to rounding otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"
#include "copus/model/kernels/kernels.h"
#include "copus/train/testing/take_snapshot.h"
#include "copus/train/testing/test_layouts.h"
#include "copus/train/trainer/trainer.h"

namespace copus {
namespace {

using namespace layouts;

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t num_steps = 10;

struct Result {
  std::vector<double> losses, gradient_norms;
  std::optional<double> held_out_loss;
  std::vector<SourceLoss> held_out_losses;
  std::vector<float> fresh_weights, weights;  // of all parameters in canonical order; at the beginning and at the end
};

class LayoutMatrix : public ::testing::Test {
 protected:
  LayoutMatrix() {
    write_corpus(corpus());
    write_file_durably(folder_.path() / "a.txt", std::string(80, 'a'));   // 6 samples
    write_file_durably(folder_.path() / "b.txt", std::string(100, 'b'));  // 7 samples
  }

  std::filesystem::path corpus() const { return folder_.path() / "corpus.txt"; }

  RunConfig config(const std::vector<Change>& changes) const {
    RunConfig config = small_run(corpus());
    config.model.hidden_size = 64;
    config.model.intermediate_size = 96;
    config.model.num_layers = 8;
    config.model.head_dim = 16;
    config.data.held_out = {(folder_.path() / "a.txt").string(), (folder_.path() / "b.txt").string()};
    config.train.sequence_length = 15;
    config.train.max_steps = num_steps;
    config.evaluate.max_batches = 0;
    return with_changes(config, changes);
  }

  // Runs `body` with a trainer on every rank.
  static void train(const RunConfig& config, const std::function<void(Trainer&, World&)>& body,
                    const Connect& connect = on_test_device) {
    train_on_every_rank(
        config,
        [&](Trainer& trainer, World& world, const Dataset& dataset) {
          EXPECT_EQ(dataset.held_out_samples(), 13) << "should fill neither all ranks nor the last micro-batch";
          body(trainer, world);
        },
        connect);
  }

  // Collects the weights on rank 0; empty on other ranks.
  static std::vector<float> collect_weights(Trainer& trainer, World& world) {
    const std::optional<Snapshot> snapshot = take_snapshot(trainer);
    EXPECT_EQ(snapshot.has_value(), world.rank() == 0);
    std::vector<float> all;
    if (!snapshot) return all;
    for (const HostTensor& tensor : snapshot->weights) {
      const std::vector<float> values = to_float(tensor.view());
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  // Trains to the end and collects the result on rank 0. All ranks must report the same.
  static void finish(Trainer& trainer, World& world, Result& result) {
    Result mine;
    mine.fresh_weights = collect_weights(trainer, world);
    while (!trainer.finished()) {
      const StepRecord record = trainer.step();
      mine.losses.push_back(record.loss);
      mine.gradient_norms.push_back(record.grad_norm);
    }
    const HeldOutLoss loss = trainer.evaluate([] { return StopReason::none; }).value();
    mine.held_out_loss = loss.mean;
    EXPECT_EQ(loss.sources.size(), 2u);
    mine.held_out_losses = loss.sources;
    std::vector<double> rank_0 = mine.losses;
    rank_0.insert(rank_0.end(), mine.gradient_norms.begin(), mine.gradient_norms.end());
    rank_0.push_back(mine.held_out_loss.value());
    rank_0.push_back(trainer.state().elapsed_seconds);  // ends a run with a time limit
    const std::vector<double> here = rank_0;
    world.everyone().broadcast(rank_0.data(), static_cast<int64_t>(rank_0.size()), DataType::float64, 0);
    EXPECT_EQ(here, rank_0) << "rank " << world.rank();

    mine.weights = collect_weights(trainer, world);
    if (world.rank() == 0) result = std::move(mine);
  }

  Result run(const std::vector<Change>& changes, const Connect& connect = on_test_device) const {
    Result result;
    train(config(changes), [&](Trainer& trainer, World& world) { finish(trainer, world, result); }, connect);
    return result;
  }

  // Expects `layouts` to train `base` with the same bits, and equal to rounding to one rank with larger micro-batches.
  void expect_same(const std::vector<Change>& base, const std::vector<std::vector<Change>>& layouts) const {
    std::optional<Result> expected;
    const Change whole_sequences = [](RunConfig& c) { c.parallel.sequence_parallel = false; };
    const Result single = run(join(base, {ranks(1, 1, 1), micro_batch(8), whole_sequences}));
    for (size_t i = 0; i < layouts.size(); ++i) {
      SCOPED_TRACE(concat("layout ", i));
      const Result result = run(join(base, layouts[i]));
      EXPECT_TRUE(result.fresh_weights == single.fresh_weights);
      expect_close(result, single);
      if (!expected) expected = result;
      EXPECT_EQ(result.losses, expected->losses);
      EXPECT_EQ(result.gradient_norms, expected->gradient_norms);
      EXPECT_EQ(result.held_out_loss, expected->held_out_loss);
      EXPECT_EQ(result.held_out_losses, expected->held_out_losses);
      EXPECT_TRUE(result.weights == expected->weights);
    }
  }

  static void expect_close(const Result& result, const Result& expected) {
    ASSERT_EQ(result.losses.size(), expected.losses.size());
    for (size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(result.losses[step] / expected.losses[step], 1, 1e-5) << "step " << step + 1;
      EXPECT_NEAR(result.gradient_norms[step] / expected.gradient_norms[step], 1, 1e-3) << "step " << step + 1;
    }
    EXPECT_NEAR(*result.held_out_loss / *expected.held_out_loss, 1, 1e-5);
    EXPECT_LT(distance(result.weights, expected.weights), 1e-5);
  }

  // Distance of two weight vectors, relative to the length of the second.
  static double distance(const std::vector<float>& weights, const std::vector<float>& expected) {
    EXPECT_EQ(weights.size(), expected.size());
    double squared_distance = 0, squared_length = 0;
    for (size_t i = 0; i < std::min(weights.size(), expected.size()); ++i) {
      squared_distance += std::pow(weights[i] - expected[i], 2);
      squared_length += std::pow(expected[i], 2);
    }
    return std::sqrt(squared_distance / squared_length);
  }

  TemporaryFolder folder_;
};

TEST_F(LayoutMatrix, Pipelines) {
  expect_same({tied}, {{ranks(1, 1, 1)},
                       {ranks(1, 1, 1), zb_h1, recompute(Recompute::attention)},
                       {ranks(1, 1, 2)},
                       {ranks(1, 1, 2), interleaved, recompute(Recompute::full)},
                       {ranks(1, 1, 4), gpipe, zero_1},
                       {ranks(1, 1, 4), zb_h1},
                       {ranks(1, 1, 4), interleaved},
                       {ranks(1, 1, 8), zb_h1, recompute(Recompute::full)}});
}

TEST_F(LayoutMatrix, DataAndPipeline) {
  expect_same({micro_batch(1)}, {{ranks(2, 1, 1)},
                                 {ranks(2, 1, 1), zero_1, recompute(Recompute::full)},
                                 {ranks(2, 1, 2), zero_1, zb_h1},
                                 {ranks(2, 1, 2), interleaved},
                                 {ranks(2, 1, 4), zero_1}});
}

TEST_F(LayoutMatrix, FourDataParallelRanks) {
  expect_same({tied, kv_heads(4), micro_batch(1)}, {{ranks(4, 1, 1), gpipe},
                                                    {ranks(4, 1, 1), zero_1, zb_h1},
                                                    {ranks(4, 1, 2), zero_1, interleaved},
                                                    {ranks(4, 1, 2), zb_h1, recompute(Recompute::attention)}});
}

TEST_F(LayoutMatrix, TensorAndPipeline) {
  expect_same({kv_heads(4)}, {{ranks(1, 2, 1), recompute(Recompute::full)},
                              {ranks(1, 2, 4), zb_h1},
                              {ranks(1, 2, 2), interleaved, recompute(Recompute::attention)}});
}

TEST_F(LayoutMatrix, SequenceParallelWithFewerKeyValueHeadsThanRanks) {
  expect_same({tied, kv_heads(1), sequence_parallel}, {{ranks(2, 2, 1)},
                                                       {ranks(2, 2, 1), zero_1, zb_h1},
                                                       {ranks(2, 2, 2), recompute(Recompute::attention)},
                                                       {ranks(2, 2, 2), zero_1, interleaved}});
}

TEST_F(LayoutMatrix, FourTensorParallelRanksWithBiases) {
  expect_same({tied, biases_everywhere}, {{ranks(1, 4, 1)}, {ranks(1, 4, 2), zb_h1}, {ranks(1, 4, 2), interleaved}});
}

TEST_F(LayoutMatrix, FourSequenceParallelRanks) {
  expect_same({biases_everywhere, sequence_parallel, micro_batch(4)},
              {{ranks(1, 4, 1), recompute(Recompute::full)}, {ranks(1, 4, 2), gpipe}});
}

TEST_F(LayoutMatrix, NormalizedOutputsAndProjections) {
  expect_same({normalized_outputs_and_projections, tied, kv_heads(1)},
              {{ranks(1, 4, 1)},
               {ranks(1, 4, 1), recompute(Recompute::full)},
               {ranks(1, 4, 2), zb_h1},
               {ranks(1, 4, 2), interleaved, recompute(Recompute::attention)}});
  expect_same({normalized_outputs_and_projections, sequence_parallel, micro_batch(4)},
              {{ranks(2, 2, 1), zero_1},
               {ranks(2, 2, 1), zero_3, recompute(Recompute::full)},
               {ranks(2, 2, 2), zero_2, zb_h1}});
}

TEST_F(LayoutMatrix, LearnedPositionsAndLayerNorm) {
  expect_same({like_gpt2, tied}, {{ranks(1, 4, 1)},
                                  {ranks(1, 4, 1), recompute(Recompute::full)},
                                  {ranks(1, 4, 2), zb_h1},
                                  {ranks(1, 4, 2), interleaved, recompute(Recompute::attention)}});
  expect_same({like_gpt2, tied, sequence_parallel, micro_batch(4)},
              {{ranks(2, 2, 1), zero_1},
               {ranks(2, 2, 1), zero_3, recompute(Recompute::full)},
               {ranks(2, 2, 2), zero_2, zb_h1}});
  expect_same({like_gpt2}, {{ranks(2, 1, 1)}, {ranks(2, 1, 4), zb_h1}});
}

TEST_F(LayoutMatrix, DocumentsThatStayApart) {
  expect_same({like_gpt2, tied, documents_apart},
              {{ranks(1, 4, 1)}, {ranks(1, 4, 2), interleaved, recompute(Recompute::full)}});
  expect_same({windows_in_some_layers, documents_apart, sequence_parallel, micro_batch(4)},
              {{ranks(2, 2, 1), zero_3, recompute(Recompute::attention)}, {ranks(2, 2, 2), zero_2, zb_h1}});
  expect_same({documents_apart}, {{ranks(2, 1, 1)}, {ranks(2, 1, 4), zb_h1}});
}

TEST_F(LayoutMatrix, NormalizedHeads) {
  expect_same(
      {normalized_heads, tied, kv_heads(1)},
      {{ranks(1, 4, 1)}, {ranks(1, 4, 2), zb_h1}, {ranks(1, 4, 2), interleaved, recompute(Recompute::attention)}});
  expect_same({normalized_heads, sequence_parallel, micro_batch(4)},
              {{ranks(2, 2, 1), zero_1},
               {ranks(2, 2, 1), zero_3, recompute(Recompute::full)},
               {ranks(2, 2, 2), zero_2, zb_h1}});
}

// Layouts that sum gradients in the same order, which gives the same bits.
const std::vector<std::vector<std::vector<Change>>> orders_of_sums = {
    {{ranks(2, 1, 1)},
     {ranks(2, 1, 1), zero_1, recompute(Recompute::full)},
     {ranks(2, 1, 1), zero_2},
     {ranks(2, 1, 2), zero_3, zb_h1},
     {ranks(2, 1, 4), zero_1, gpipe}},
    {{ranks(1, 2, 1)}, {ranks(1, 2, 4), zb_h1}},
    {{ranks(2, 2, 1), sequence_parallel, zero_1}, {ranks(2, 2, 2), sequence_parallel, zero_3}}};

// Another order rounds differently, and an update may amplify that: Signum's where a momentum is near zero, because its
// weight may move in the other direction by the full learning rate, and Muon's in a momentum's small singular values.
TEST_F(LayoutMatrix, UpdatesThatAmplifyRounding) {
  for (const Change& optimizer : {signum, muon}) {
    const std::vector<Change> base = {optimizer, tied, micro_batch(4)};
    const Result single = run(join(base, {ranks(1, 1, 1), micro_batch(8)}));
    for (const auto& layouts : orders_of_sums) {
      const Result first = run(join(base, layouts.front()));
      for (size_t other = 1; other < layouts.size(); ++other) {
        const Result result = run(join(base, layouts[other]));
        EXPECT_EQ(result.losses, first.losses) << other;
        EXPECT_TRUE(result.weights == first.weights) << other;
      }
      for (size_t step = 0; step < num_steps; ++step) {
        EXPECT_NEAR(first.losses[step] / single.losses[step], 1, 1e-4) << "step " << step + 1;
      }
      double turned = 0;
      for (size_t i = 0; i < single.weights.size(); ++i) {
        turned += std::abs(first.weights[i] - single.weights[i]) > 1e-5F ? 1 : 0;
      }
      EXPECT_LT(turned / static_cast<double>(single.weights.size()), 0.01);
    }
  }
}

TEST_F(LayoutMatrix, WithinAWindow) {
  expect_same({within_a_window, kv_heads(4)}, {{ranks(1, 2, 1)}, {ranks(1, 2, 2), zb_h1, recompute(Recompute::full)}});
}

TEST_F(LayoutMatrix, WindowsInSomeLayers) {
  expect_same({windows_in_some_layers, tied},
              {{ranks(1, 2, 1)}, {ranks(1, 2, 2), zb_h1}, {ranks(1, 2, 2), interleaved, recompute(Recompute::full)}});
  expect_same({windows_in_some_layers}, {{ranks(1, 1, 1)}, {ranks(1, 1, 4), zb_h1}});
  expect_same({windows_in_some_layers, sequence_parallel, micro_batch(4)},
              {{ranks(2, 2, 1), zero_3, recompute(Recompute::attention)}, {ranks(2, 2, 2), zero_2, zb_h1}});
}

TEST_F(LayoutMatrix, Multipliers) {
  expect_same({multipliers, tied},
              {{ranks(1, 2, 1)}, {ranks(1, 2, 2), zb_h1}, {ranks(1, 2, 2), interleaved, recompute(Recompute::full)}});
  expect_same({multipliers, sequence_parallel, micro_batch(4)},
              {{ranks(2, 2, 1), zero_3}, {ranks(2, 2, 2), zero_2, zb_h1}});
}

// AdamW moves a weight whose gradient is nearly 0 as far as any other. With the usual epsilon of 1e-8, rounding moved
// one weight of 281 thousand by the learning rate.
TEST_F(LayoutMatrix, NormsOfInputsAndOutputs) {
  const Change epsilon = [](RunConfig& config) { config.optimizer.epsilon = 1e-6; };
  expect_same({like_gemma3, tied, kv_heads(1), epsilon},
              {{ranks(1, 4, 1)}, {ranks(1, 4, 2), zb_h1}, {ranks(1, 4, 2), interleaved, recompute(Recompute::full)}});
  expect_same({like_gemma3, sequence_parallel, micro_batch(4), epsilon},
              {{ranks(2, 2, 1), zero_3, recompute(Recompute::attention)}, {ranks(2, 2, 2), zero_2, zb_h1}});
}

TEST_F(LayoutMatrix, SoftCaps) {
  const Change epsilon = [](RunConfig& config) { config.optimizer.epsilon = 1e-6; };
  expect_same({like_gemma2, tied, kv_heads(1), epsilon},
              {{ranks(1, 4, 1)}, {ranks(1, 4, 2), zb_h1}, {ranks(1, 4, 2), interleaved, recompute(Recompute::full)}});
  expect_same({like_gemma2, sequence_parallel, micro_batch(4), epsilon},
              {{ranks(2, 2, 1), zero_3, recompute(Recompute::attention)}, {ranks(2, 2, 2), zero_2, zb_h1}});
}

TEST_F(LayoutMatrix, ParallelResiduals) {
  expect_same({like_gpt_neox},
              {{ranks(1, 4, 1)}, {ranks(1, 4, 2), zb_h1}, {ranks(1, 4, 2), interleaved, recompute(Recompute::full)}});
  expect_same({like_gpt_neox, sequence_parallel, micro_batch(4)},
              {{ranks(2, 2, 1), zero_3, recompute(Recompute::attention)}, {ranks(2, 2, 2), zero_2, zb_h1}});
}

TEST_F(LayoutMatrix, FreeParts) {
  const Change epsilon = [](RunConfig& config) { config.optimizer.epsilon = 1e-6; };
  expect_same({free_parts, tied, epsilon},
              {{ranks(1, 4, 1)}, {ranks(1, 4, 2), zb_h1}, {ranks(1, 4, 2), interleaved, recompute(Recompute::full)}});
  expect_same({free_parts, sequence_parallel, micro_batch(4), epsilon},
              {{ranks(2, 2, 1), zero_3, recompute(Recompute::attention)}, {ranks(2, 2, 2), zero_2, zb_h1}});
}

TEST_F(LayoutMatrix, PartialRotaryEmbeddings) {
  expect_same({like_phi3}, {{ranks(1, 4, 1)}, {ranks(1, 4, 2), zb_h1, recompute(Recompute::full)}});
}

TEST_F(LayoutMatrix, SomeLayersWithoutRope) {
  expect_same({some_layers_without_rope, tied},
              {{ranks(1, 1, 1)}, {ranks(1, 1, 4), zb_h1}, {ranks(1, 1, 2), interleaved, recompute(Recompute::full)}});
}

TEST_F(LayoutMatrix, EightRanksWithoutPipeline) {
  expect_same({tied, kv_heads(1)}, {{ranks(2, 4, 1)}, {ranks(2, 4, 1), zero_1}});
  expect_same({sequence_parallel}, {{ranks(4, 2, 1), zero_1}, {ranks(4, 2, 1)}});
}

// With one micro-batch on each data-parallel rank, all ZeRO stages form the same sums.
TEST_F(LayoutMatrix, EveryZeroStageWithOneMicroBatch) {
  expect_same({tied, kv_heads(1), micro_batch(4)}, {{ranks(2, 1, 1)},
                                                    {ranks(2, 1, 1), zero_2},
                                                    {ranks(2, 1, 1), zero_3, recompute(Recompute::attention)},
                                                    {ranks(2, 1, 2), zero_2},
                                                    {ranks(2, 1, 2), zero_3, zb_h1},
                                                    {ranks(2, 1, 4), zero_3_keeping, gpipe}});
  expect_same({biases, sequence_parallel, micro_batch(2)}, {{ranks(4, 2, 1), zero_1},
                                                            {ranks(4, 2, 1), zero_2},
                                                            {ranks(4, 2, 1), zero_3, recompute(Recompute::full)},
                                                            {ranks(4, 2, 1), zero_3_keeping}});
}

// With several micro-batches, ZeRO-2 and 3 reduce each one separately. Their sums differ from ZeRO-1's but not from
// each other's.
TEST_F(LayoutMatrix, ZeroTwoAndThreeWithSeveralMicroBatches) {
  expect_same({tied, micro_batch(1)}, {{ranks(2, 1, 1), zero_2},
                                       {ranks(2, 1, 1), zero_3, recompute(Recompute::full)},
                                       {ranks(2, 1, 2), zero_2, zb_h1},
                                       {ranks(2, 1, 2), zero_3, interleaved},
                                       {ranks(2, 1, 4), zero_3_keeping, zb_h1}});
  expect_same(
      {tied, kv_heads(1), sequence_parallel},
      {{ranks(2, 2, 1), zero_2}, {ranks(2, 2, 2), zero_3, zb_h1}, {ranks(2, 2, 2), zero_3_keeping, interleaved}});
  expect_same({biases, micro_batch(1)}, {{ranks(4, 1, 1), zero_2, gpipe}, {ranks(4, 1, 2), zero_3}});
}

TEST_F(LayoutMatrix, HybridSharding) {
  expect_same({tied, micro_batch(1)},
              {{ranks(4, 1, 1), zero(2, 2)}, {ranks(4, 1, 1), zero(3, 2)}, {ranks(4, 1, 2), zero(3, 2), zb_h1}});
  expect_same({micro_batch(2)}, {{ranks(4, 1, 1), zero(1, 2)}, {ranks(4, 1, 1), zero(3, 2)}});
  expect_same({micro_batch(2)}, {{ranks(4, 1, 1)}, {ranks(4, 1, 1), zero(3, 4)}});
}

TEST_F(LayoutMatrix, RoundedWeightsAreGathered) {
  const Change short_run = [](RunConfig& config) { config.train.max_steps = 2; };
  const Result all = run({bf16, short_run, tied, micro_batch(4), ranks(2, 1, 1)});
  for (const Change& zero : {zero_1, zero_2, zero_3}) {
    const Result sharded = run({bf16, short_run, tied, micro_batch(4), ranks(2, 1, 2), zero});
    EXPECT_EQ(sharded.losses, all.losses);
    EXPECT_EQ(sharded.held_out_loss, all.held_out_loss);
    EXPECT_TRUE(sharded.weights == all.weights);
  }
}

TEST_F(LayoutMatrix, RoundedActivationsAreExchanged) {
  const Change short_run = [](RunConfig& config) { config.train.max_steps = 2; };
  const std::vector<Change> base = {bf16, short_run, tied, kv_heads(1), sequence_parallel};
  const auto with = [&](const std::vector<Change>& layout) { return run(join(base, layout)); };
  const Result all = with({ranks(1, 2, 1)});
  const Result sharded = with({ranks(1, 2, 2), interleaved, recompute(Recompute::full)});
  EXPECT_EQ(sharded.losses, all.losses);
  EXPECT_EQ(sharded.held_out_loss, all.held_out_loss);
  EXPECT_TRUE(sharded.weights == all.weights);
}

TEST_F(LayoutMatrix, WeightsOfAFileReachEveryRank) {
  const Change other_seed = [](RunConfig& config) { config.execution.seed = 99; };
  const auto never = [] { return StopReason::none; };
  std::optional<Snapshot> file;
  std::optional<double> expected;
  train(config({tied}), [&](Trainer& trainer, World&) {
    trainer.step();
    file = take_snapshot(trainer);
    expected = trainer.held_out_loss(never);
  });
  std::map<std::string, TensorView, std::less<>> weights;
  for (const HostTensor& tensor : file->weights) weights.emplace(tensor.name, tensor.view());
  for (const Change& precision : {fp32, bf16}) {
    train(config({tied, other_seed, precision, ranks(2, 2, 2), zero_1}), [&](Trainer& trainer, World&) {
      trainer.load(weights);
      EXPECT_NEAR(trainer.held_out_loss(never).value() / expected.value(), 1, 1e-3);
    });
  }
}

TEST_F(LayoutMatrix, ACheckpointOfOneLayoutGoesOnInAnother) {
  const std::vector<Change> written_in = {tied, kv_heads(1), sequence_parallel, ranks(2, 2, 2), zero_1, zb_h1};
  Result uninterrupted;
  train(config(written_in), [&](Trainer& trainer, World& world) {
    for (int step = 0; step < num_steps / 2; ++step) trainer.step();
    const std::optional<Snapshot> snapshot = take_snapshot(trainer);
    if (snapshot) {
      CheckpointWriter writer(folder_.path() / "checkpoints", 1);
      writer.write(*snapshot);
      writer.finish();
    }
    finish(trainer, world, uninterrupted);
  });
  const Checkpoint checkpoint(latest_checkpoint(folder_.path() / "checkpoints").value());
  const auto resume = [&](const std::vector<Change>& changes) {
    Result result;
    train(config(changes), [&](Trainer& trainer, World& world) {
      trainer.restore(checkpoint);
      finish(trainer, world, result);
    });
    return result;
  };
  const Result same = resume({tied, kv_heads(1), sequence_parallel, ranks(2, 2, 1)});
  EXPECT_EQ(same.losses, uninterrupted.losses);
  EXPECT_EQ(same.gradient_norms, uninterrupted.gradient_norms);
  EXPECT_TRUE(same.weights == uninterrupted.weights);
  for (const Change& other : {ranks(1, 1, 1), ranks(1, 4, 2), ranks(4, 1, 2)}) {
    for (const Change& zero : {zero_1, zero_3}) {
      expect_close(resume({tied, kv_heads(1), other, zero}), uninterrupted);
    }
  }
}

TEST_F(LayoutMatrix, RankZeroDecidesWhenToStopAndAnyRankThatIsTold) {
  train(config({ranks(1, 1, 2)}), [](Trainer& trainer, World& world) {
    const auto on_rank = [&](int64_t rank, StopReason reason) {
      return [&world, rank, reason] { return world.rank() == rank ? reason : StopReason::none; };
    };
    trainer.step(on_rank(1, StopReason::time_limit));
    EXPECT_EQ(trainer.stop_reason(), StopReason::none);
    EXPECT_TRUE(trainer.held_out_loss(on_rank(1, StopReason::time_limit)).has_value());
    for (const auto& [rank, reason] : {std::pair(0, StopReason::time_limit), std::pair(1, StopReason::terminate)}) {
      trainer.step(on_rank(rank, reason));
      EXPECT_EQ(trainer.stop_reason(), reason);
      EXPECT_EQ(trainer.held_out_loss(on_rank(rank, reason)), std::nullopt);
    }
  });
}

TEST_F(LayoutMatrix, StepsThatAreNotFiniteAreSkippedOnAllRanks) {
  const Change infinite = [](RunConfig& config) {
    config.optimizer.lr = 1e30;
    config.train.clip_norm = 0;
    config.train.max_steps = 100;
    config.optimizer.schedule = LearningRateSchedule::constant;
  };
  EXPECT_THAT(user_error([&] {
                train(config({infinite, ranks(2, 1, 2), zero_1}), [](Trainer& trainer, World&) {
                  while (true) trainer.step();
                });
              }),
              HasSubstr("diverged"));
}

TEST_F(LayoutMatrix, AStepThatIsNotFiniteOnOneRankIsSkippedOnAll) {
  train(config({ranks(2, 1, 2)}), [](Trainer& trainer, World& world) {
    trainer.step();
    const bool is_broken = world.rank() == 1;  // rank 1 is on the first stage of the second data-parallel rank
    ParameterStore& parameters = trainer.parameters();
    at::Tensor norm;
    if (is_broken) {
      norm = parameters.master(parameters.find("model.layers.0.input_layernorm.weight"));
      norm.fill_(std::numeric_limits<double>::infinity());
    }
    EXPECT_FALSE(std::isfinite(trainer.step().loss));
    EXPECT_EQ(trainer.state().skipped_steps, 1);
    EXPECT_EQ(trainer.state().optimizer_steps, 1);
    if (is_broken) norm.fill_(1);
    EXPECT_TRUE(std::isfinite(trainer.step().loss));
    EXPECT_EQ(trainer.state().skipped_steps, 1);
    EXPECT_EQ(trainer.state().consumed_samples, 3 * 8);
  });
}

// If a rank's weights are damaged and no other rank has a copy, nothing can repair them: all ranks end with the same
// message.
TEST_F(LayoutMatrix, DamagedWeightsOfOneRankEndTheRunOnAllAfterTenSteps) {
  const Change longer = [](RunConfig& config) { config.train.max_steps = 100; };
  EXPECT_THAT(user_error([&] {
                train(config({ranks(2, 1, 2), longer}), [](Trainer& trainer, World& world) {
                  trainer.step();
                  if (world.rank() == 1) {
                    ParameterStore& parameters = trainer.parameters();
                    const Parameter& norm = parameters.find("model.layers.0.input_layernorm.weight");
                    parameters.master(norm).fill_(std::numeric_limits<double>::quiet_NaN());
                  }
                  for (int skipped = 1; skipped < 10; ++skipped) {
                    trainer.step();
                    EXPECT_EQ(trainer.state().skipped_in_a_row, skipped);
                  }
                  world.everyone().barrier();
                  trainer.step();
                  ADD_FAILURE() << "rank " << world.rank() << " goes on";
                });
              }),
              AllOf(HasSubstr("diverged"), HasSubstr("up to step 11")));
}

// Covers every use that training makes of its groups, as on a GPU that the ranks share.
TEST_F(LayoutMatrix, TrainsTheSameWhereMemoryTravelsAsADevicesDoes) {
  if (!test_device().is_cpu()) GTEST_SKIP() << "all tests are on a device";
  const std::vector<std::vector<Change>> layouts = {{ranks(2, 2, 2), zero_1, sequence_parallel, tied, zb_h1},
                                                    {ranks(2, 1, 2), biases, bf16, interleaved},
                                                    {ranks(4, 2, 1), zero_1, bf16, tied, kv_heads(1)},
                                                    {ranks(2, 2, 2), zero_3, bf16, tied, sequence_parallel, zb_h1},
                                                    {ranks(4, 1, 1), zero(2, 2), micro_batch(1), tied}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    SCOPED_TRACE(concat("layout ", i));
    const Result result = run(layouts[i], as_on_a_device), expected = run(layouts[i]);
    EXPECT_EQ(result.losses, expected.losses);
    EXPECT_EQ(result.gradient_norms, expected.gradient_norms);
    EXPECT_EQ(result.held_out_loss, expected.held_out_loss);
    EXPECT_TRUE(result.weights == expected.weights);
  }
}

// After a step whole weights are still being gathered.
TEST_F(LayoutMatrix, WeightsAreWholeForWhoeverReadsThemAfterAStep) {
  if (!test_device().is_cpu()) GTEST_SKIP() << "all tests are on a device";
  std::vector<at::Tensor> first;
  train(
      config({ranks(2, 1, 1), zero_1}),
      [&](Trainer& trainer, World& world) {
        trainer.step();
        EXPECT_NO_THROW(trainer.check_state(std::nullopt));
        trainer.step();
        std::vector<at::Tensor> weights;
        for (const Bucket& bucket : trainer.parameters().buckets()) weights.push_back(bucket.weight.clone());
        if (world.rank() == 0) first = weights;
        world.everyone().barrier();
        for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(weights[i].equal(first[i])) << "bucket " << i;
        world.everyone().barrier();
      },
      as_on_a_device);
}

TEST_F(LayoutMatrix, TracedStepsAreRecordedOnEveryRank) {
  train(config({ranks(2, 1, 2), zb_h1}), [](Trainer& trainer, World&) {
    trainer.step();
    EXPECT_TRUE(trainer.events().empty());
    trainer.trace_next_step();
    trainer.step();
    const size_t count = trainer.events().size();
    trainer.step();
    EXPECT_EQ(trainer.events().size(), count);
    int64_t forward = 0, all_reduces = 0;
    for (const TimelineEvent& event : trainer.events()) {
      EXPECT_EQ(event.step, 2);
      EXPECT_LE(event.begin, event.end);
      forward += event.name == "F" ? 1 : 0;
      all_reduces += event.name == "all_reduce data" ? 1 : 0;
    }
    EXPECT_EQ(forward, 2);
    EXPECT_EQ(all_reduces, 5);  // four layers, and the embedding or the head
  });
}

}  // namespace
}  // namespace copus
