#include "copus/performance/block_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "copus/placement/attention_block.h"

namespace copus {
namespace {

constexpr double bytes_per_second = 1e9;

ModelDescription small_model() {
  ModelDescription model;
  model.vocab_size = 100;
  model.hidden_size = 64;
  model.intermediate_size = 96;
  model.num_layers = 2;
  model.num_heads = model.num_kv_heads = 4;
  model.head_dim = 16;
  return model;
}

BlockCosts costs_of(const ModelDescription& model, Recompute recompute = Recompute::none) {
  ClusterDescription cluster;
  cluster.device.memory_bytes_per_second = bytes_per_second;
  cluster.device.matmul_flops_per_second = 1e12;
  return cost_blocks(model, /*sequence_length=*/128, cluster, TrainingSystem{},
                     {.micro_batch = 4, .recompute = recompute});
}

// Attention within documents takes as long as full attention in sequences of their length; nothing else changes.
TEST(BlockTime, AttentionEndsAtDocuments) {
  ClusterDescription cluster;
  cluster.device.matmul_flops_per_second = 1e12;
  cluster.device.attention_forward = Curve({{16, 0.2}, {128, 0.8}});
  const auto layer = [&](int64_t sequence, int64_t micro_batch, double document_length) {
    return cost_blocks(small_model(), sequence, cluster, {.document_length = document_length},
                       {.micro_batch = micro_batch})
        .layers.front();
  };
  EXPECT_EQ(layer(128, 1, 16).forward.compute, layer(16, 8, 0).forward.compute);
  EXPECT_EQ(layer(128, 1, 16).backward().compute, layer(16, 8, 0).backward().compute);
  EXPECT_LT(layer(128, 1, 16).forward.compute, layer(128, 1, 0).forward.compute);
  for (const double length : {128.0, 500.0}) {
    EXPECT_EQ(layer(128, 1, length).total().total(), layer(128, 1, 0).total().total());
  }
}

// A block of keys is read whole, and may serve queries of several documents.
TEST(BlockTime, AttentionWithinDocumentsReadsWholeBlocks) {
  ClusterDescription cluster;
  cluster.device.matmul_flops_per_second = 1e12;
  const auto forward = [&](double document_length, double block) {
    return cost_blocks(small_model(), 1024, cluster, {.document_length = document_length, .attention_block = block},
                       {.micro_batch = 1})
        .layers.front()
        .forward.compute;
  };
  EXPECT_GT(forward(100, 64), forward(100, 0));
  EXPECT_EQ(forward(100, 64), forward(228, 0));
  EXPECT_EQ(forward(900, 64), forward(0, 64)) << "more than all keys are not read";
}

// Counts the keys that the kernel (copus/model/cpu/attention.h) reads for random documents.
TEST(BlockTime, TheKeysOfBlocksAreAsManyAsTheKernelReads) {
  constexpr int64_t block = attention_block_on_cpu, sequence = 1 << 16;
  std::mt19937 random(1);
  for (const double mean : {100.0, 400.0, 2000.0}) {
    std::exponential_distribution<double> lengths(1 / mean);
    std::vector<int64_t> starts;  // of each token's document
    double squares = 0;
    while (std::ssize(starts) < sequence) {
      const auto begin = std::ssize(starts);
      const auto length = std::min(sequence - begin, 1 + static_cast<int64_t>(lengths(random)));
      starts.insert(starts.end(), static_cast<size_t>(length), begin);
      squares += static_cast<double>(length * length);
    }
    double keys = 0;
    for (int64_t first = 0; first < sequence; first += block) {
      const int64_t before = first - starts[static_cast<size_t>(first)] / block * block;
      keys += static_cast<double>(before) + block / 2.0;  // per query
    }
    const double read = keys / (static_cast<double>(sequence) / block);
    const TrainingSystem system{.document_length = squares / sequence, .attention_block = block};
    EXPECT_NEAR(read / (attended_length(system, sequence) / 2), 1, 0.05) << mean;  // a query reads half of a sequence
  }
}

// Each of a layer's two multipliers reads and writes its operand once in the forward and once in the backward pass.
TEST(BlockTime, MultipliersMoveTheStreamOnceMore) {
  ModelDescription model = small_model();
  const BlockCosts plain = costs_of(model);
  model.embedding_multiplier = model.residual_multiplier = model.logits_scaling = 2;
  const BlockCosts multiplied = costs_of(model);
  const double once =
      2.0 * 4 * 128 * static_cast<double>(model.hidden_size) * TrainingSystem{}.activation_bytes / bytes_per_second;
  const auto added = [&](const BlockCost& more, const BlockCost& fewer) {
    return (more.total().total() - fewer.total().total()) / once;
  };
  const BlockCost &layer = multiplied.layers.front(), &plain_layer = plain.layers.front();
  EXPECT_NEAR(added(multiplied.embedding, plain.embedding), 2, 1e-9);
  EXPECT_NEAR(added(layer, plain_layer), 4, 1e-9);
  EXPECT_NEAR(added(multiplied.head, plain.head), 2, 1e-9);
  EXPECT_NEAR((layer.forward.compute - plain_layer.forward.compute) / once, 2, 1e-9);
}

// Sequential blocks add attention's output to the stream within the next norm. Parallel blocks need a pass for it,
// which a recompute repeats.
TEST(BlockTime, ParallelBlocksReadTheStreamOnceMore) {
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    ModelDescription model = small_model();
    const BlockCosts sequential = costs_of(model, recompute);
    model.parallel_residual = true;
    const BlockCosts parallel = costs_of(model, recompute);
    const double forward = parallel.layers.front().forward.compute - sequential.layers.front().forward.compute;
    EXPECT_GT(forward, 0);
    const double backward = parallel.layers.front().backward().compute - sequential.layers.front().backward().compute;
    EXPECT_NEAR(backward, recompute == Recompute::full ? forward : 0, 1e-9 * forward);
  }
}

TEST(BlockTime, NormsOfOutputsMoveTheStreamBesideThoseOfInputs) {
  ModelDescription model = small_model();
  const double inputs = costs_of(model).layers.front().total().total();
  model.block_norm = BlockNorm::output;
  const double outputs = costs_of(model).layers.front().total().total();
  model.block_norm = BlockNorm::both;
  const double both = costs_of(model).layers.front().total().total();
  EXPECT_LT(inputs, outputs);
  EXPECT_LT(outputs, both);
}

}  // namespace
}  // namespace copus
