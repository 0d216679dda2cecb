// Tests the cost of communicators. train/step/rank_groups_test.cpp compares their number with the groups that a layout
// opens.
#include "copus/performance/communicators.h"

#include <gtest/gtest.h>

#include "copus/performance/memory.h"
#include "copus/performance/relayout_forecast.h"
#include "copus/performance/testing/described_job.h"

namespace copus {
namespace {

constexpr CommunicatorCosts measured_costs = {.collective_bytes = 600e6,
                                              .exchange_bytes = 50e6,
                                              .message_bytes = 20e6,
                                              .context_bytes = 500e6,
                                              .split_seconds = 0.25};

ModelDescription model_with_two_heads() {
  ModelDescription model;
  model.vocab_size = 512;
  model.hidden_size = 64;
  model.intermediate_size = 128;
  model.num_layers = 8;
  model.num_heads = 8;
  model.num_kv_heads = 2;
  model.head_dim = 8;
  model.tie_word_embeddings = true;
  return model;
}

TEST(Communicators, TakeTheMemoryOfEach) {
  const ModelDescription model = model_with_two_heads();
  const ParallelStrategy strategy{.data_parallel = 2, .tensor_parallel = 4, .pipeline_parallel = 4};
  // Groups: tensor-parallel ranks, ranks with the same heads, data-parallel ranks; on the first and last stage also
  // tied embeddings.
  EXPECT_EQ(count_communicators(model, strategy, 1),
            (CommunicatorCounts{.collectives = 3, .exchanges = 1, .messages = 2}));
  EXPECT_EQ(count_communicators(model, strategy, 3),
            (CommunicatorCounts{.collectives = 4, .exchanges = 1, .messages = 2}));
  EXPECT_EQ(count_communicators(model, {}, 0), CommunicatorCounts{});
  EXPECT_DOUBLE_EQ(communicator_bytes({.collectives = 3, .exchanges = 1, .messages = 2}, measured_costs), 1890e6);
}

TEST(Communicators, AreWhatAGpuHoldsBesideTensors) {
  const ModelDescription model = model_with_two_heads();
  const Configuration configuration{.strategy = {.data_parallel = 2, .tensor_parallel = 4, .pipeline_parallel = 4},
                                    .global_batch = 8};
  TrainingSystem system = copus_in_bf16();
  const double flat = MemoryModel(model, 64, system).predict_every_rank(configuration)[1].workspace;
  system.memory.communicators = measured_costs;
  const double counted = MemoryModel(model, 64, system).predict_every_rank(configuration)[1].workspace;
  EXPECT_DOUBLE_EQ(counted - flat, 500e6 + 1890e6 - double{1 << 30});
  system.memory.communicators.context_bytes = 0;  // not among measured_costs
  EXPECT_DOUBLE_EQ(MemoryModel(model, 64, system).predict_every_rank(configuration)[1].workspace - flat, 1890e6);
  TrainingSystem on_cpu = copus_in_fp32();
  const auto before = MemoryModel(model, 64, on_cpu).predict_every_rank(configuration);
  on_cpu.memory.communicators = measured_costs;
  EXPECT_EQ(MemoryModel(model, 64, on_cpu).predict_every_rank(configuration), before);
}

TEST(Communicators, AreOpenedWithinThePause) {
  const ModelDescription model = model_with_two_heads();
  ClusterDescription cluster;
  cluster.ranks_per_node = 8;
  cluster.within_node = cluster.between_nodes = {1e-6, 100e9};
  const ParallelStrategy data{.data_parallel = 8}, tensor{.data_parallel = 2, .tensor_parallel = 4},
      pipeline{.data_parallel = 2, .pipeline_parallel = 4};
  const auto seconds = [&](const ParallelStrategy& from, const ParallelStrategy& to) {
    return RelayoutForecast(model, 64, cluster, copus_in_bf16()).seconds(from, to);
  };
  const double before = seconds(data, tensor), before_pipeline = seconds(data, pipeline);
  cluster.communicators = measured_costs;
  EXPECT_DOUBLE_EQ(seconds(data, tensor) - before, 3 * 0.25);  // groups of t, of shared heads and of d
  // Group of d; on the first and last stage one neighbour, the tied embeddings, and messages between these stages.
  EXPECT_DOUBLE_EQ(seconds(data, pipeline) - before_pipeline, 4 * 0.25);
  ParallelStrategy sharded = data;
  sharded.zero_stage = 1;
  EXPECT_DOUBLE_EQ(opening_seconds(model, data, sharded, measured_costs), 0);
}

}  // namespace
}  // namespace copus
