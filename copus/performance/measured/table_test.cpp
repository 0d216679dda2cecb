#include "copus/performance/measured/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace copus {
namespace {

constexpr int64_t table_sequence_length = 512;

ModelDescription model_of_table() {
  ModelDescription model;
  model.vocab_size = 8192;
  model.hidden_size = 1024;
  model.intermediate_size = 2816;
  model.num_layers = 8;
  model.num_heads = 16;
  model.num_kv_heads = 16;
  model.head_dim = 64;
  return model;
}

ClusterDescription small_cluster() {
  ClusterDescription cluster;
  cluster.num_ranks = 8;
  cluster.ranks_per_node = 4;
  cluster.within_node = {1e-6, 100e9};
  cluster.between_nodes = {1e-5, 10e9};
  cluster.device.name = "small";
  cluster.device.memory_bytes = 4e9;
  cluster.device.memory_bytes_per_second = 1e12;
  cluster.device.matmul_flops_per_second = 100e12;
  return cluster;
}

SearchSpace small_space() {
  SearchSpace space;
  space.world_size = 8;
  space.global_batches = {8, 32, 128};
  return space;
}

PerformanceTable table_of(const ClusterDescription& cluster, const Knowledge& knowledge = Knowledge()) {
  return make_table(model_of_table(), table_sequence_length, cluster, copus_in_bf16(), small_space(), knowledge);
}

TEST(Table, BeyondWhatWasMeasuredPredictionsAreLessSure) {
  ClusterDescription cluster = small_cluster();
  const TableCell on_two_nodes = table_of(cluster).cells.front();
  EXPECT_FALSE(on_two_nodes.beyond_measured);
  cluster.measured_nodes = 1;
  const TableCell beyond = table_of(cluster).cells.front();
  EXPECT_TRUE(beyond.beyond_measured);
  EXPECT_EQ(beyond.step.seconds, on_two_nodes.step.seconds);
  EXPECT_DOUBLE_EQ(beyond.step.relative_deviation, std::hypot(on_two_nodes.step.relative_deviation, 0.05));
  // Its own measurements make it certain, on any number of nodes.
  const Knowledge knowledge = observe(Knowledge(), beyond.configuration, beyond.parts, {10, 1.0, 0.01});
  EXPECT_FALSE(table_of(cluster, knowledge).cells.front().beyond_measured);
}

TEST(Table, HoldsWhatFitsAsPredicted) {
  const ClusterDescription cluster = small_cluster();
  const PerformanceTable table = table_of(cluster);
  const auto all = enumerate(model_of_table(), table_sequence_length, small_space());
  EXPECT_GT(table.cells.size(), 0);
  EXPECT_GT(table.too_large, 0);
  EXPECT_EQ(table.cells.size() + table.too_large, all.size());
  EXPECT_FALSE(table.smallest);

  auto candidate = all.begin();
  for (const TableCell& cell : table.cells) {
    // Cells are in the order of enumeration; candidates that do not fit are left out.
    for (; candidate != all.end() && *candidate != cell.configuration; ++candidate) {
      MemoryModel memory(model_of_table(), table_sequence_length, copus_in_bf16());
      EXPECT_GT(memory.predict(*candidate).parts.total(), cluster.device.memory_bytes);
    }
    ASSERT_NE(candidate, all.end());
    ++candidate;
    MemoryModel memory(model_of_table(), table_sequence_length, copus_in_bf16());
    StepTimeModel time(model_of_table(), table_sequence_length, cluster, copus_in_bf16());
    EXPECT_EQ(cell.memory.parts, memory.predict(cell.configuration).parts);
    EXPECT_LE(cell.memory.parts.total(), cluster.device.memory_bytes);
    EXPECT_EQ(cell.parts, time.predict(cell.configuration));
    EXPECT_EQ(cell.step.seconds, Knowledge().correct(cell.configuration, cell.parts).seconds);
    EXPECT_EQ(cell.throughput(), static_cast<double>(cell.configuration.global_batch) / cell.step.seconds);
    EXPECT_EQ(cell.measured_steps, 0);
  }
}

TEST(Table, WithoutAMemorySizeNothingIsTooLarge) {
  ClusterDescription cluster = small_cluster();
  cluster.device.memory_bytes = 0;
  const PerformanceTable table = table_of(cluster);
  EXPECT_EQ(table.cells.size(), enumerate(model_of_table(), table_sequence_length, small_space()).size());
  EXPECT_EQ(table.too_large, 0);
  EXPECT_FALSE(table.smallest);
}

TEST(Table, WhereNothingFitsKnowsWhatNearlyDoes) {
  ClusterDescription cluster = small_cluster();
  cluster.device.memory_bytes = 0;
  const PerformanceTable all = table_of(cluster);
  const auto least = std::min_element(all.cells.begin(), all.cells.end(), [](const auto& a, const auto& b) {
    return a.memory.parts.total() < b.memory.parts.total();
  });

  cluster.device.memory_bytes = 1;
  const PerformanceTable table = table_of(cluster);
  EXPECT_TRUE(table.cells.empty());
  EXPECT_EQ(static_cast<size_t>(table.too_large), all.cells.size());
  ASSERT_TRUE(table.smallest);
  EXPECT_EQ(table.smallest->configuration, least->configuration);
  EXPECT_EQ(table.smallest->step.seconds, least->step.seconds);

  // A configuration fits into exactly as much memory as it needs.
  cluster.device.memory_bytes = least->memory.parts.total();
  const PerformanceTable one = table_of(cluster);
  ASSERT_FALSE(one.cells.empty());
  EXPECT_EQ(one.cells.front().configuration, least->configuration);
}

TEST(Table, IsCorrectedByKnowledge) {
  const PerformanceTable before = table_of(small_cluster());
  const TableCell& measured = before.cells[before.cells.size() / 2];
  const Knowledge knowledge =
      observe(Knowledge(), measured.configuration, measured.parts,
              {.steps = 50, .median_seconds = 2 * measured.parts.total(), .relative_spread = 0.01});
  const PerformanceTable after = table_of(small_cluster(), knowledge);
  ASSERT_EQ(after.cells.size(), before.cells.size());
  for (size_t i = 0; i < before.cells.size(); ++i) {
    const bool is_measured = before.cells[i].configuration == measured.configuration;
    EXPECT_EQ(after.cells[i].configuration, before.cells[i].configuration);
    EXPECT_EQ(after.cells[i].parts, before.cells[i].parts);
    EXPECT_EQ(after.cells[i].measured_steps, is_measured ? 50 : 0);
    EXPECT_GT(after.cells[i].step.seconds, before.cells[i].step.seconds);
  }
}

}  // namespace
}  // namespace copus
