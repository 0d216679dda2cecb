#include "copus/performance/matrix_update.h"

#include <gtest/gtest.h>

#include "copus/description/muon.h"
#include "copus/performance/memory.h"
#include "copus/performance/step_time.h"

namespace copus {
namespace {

ModelDescription model_of_four_layers() {
  ModelDescription model;
  model.vocab_size = 64;
  model.hidden_size = 64;
  model.intermediate_size = 96;
  model.num_layers = 4;
  model.num_heads = 4;
  model.num_kv_heads = 4;
  model.head_dim = 16;
  return model;
}

ClusterDescription cluster_with_free_links() {
  ClusterDescription cluster{
      .ranks_per_node = 64, .within_node = {0, 1e30}, .between_nodes = {0, 1e30}, .flops_per_second = 0};
  cluster.device.matmul_flops_per_second = 1e9;
  return cluster;
}

double seconds(const ParallelStrategy& strategy) {
  return matrix_update_seconds(model_of_four_layers(), strategy, {{0, 4}}, cluster_with_free_links(),
                               copus_in_fp32(Processor::cpu, OptimizerKind::muon))
      .total();
}

TEST(MatrixUpdate, OneRankDoesAllOperations) {
  double flops = 0;
  for (const ParameterInfo& parameter : list_parameters(model_of_four_layers())) {
    if (is_hidden_matrix(parameter)) flops += newton_schulz_flops(parameter.shape, MuonSettings().newton_schulz_steps);
  }
  EXPECT_NEAR(seconds({}), flops / 1e9, 1e-12);
}

// Four layers have 28 hidden matrices: 16 square and 12 larger ones.
TEST(MatrixUpdate, RanksShareWholeMatrices) {
  const double largest = newton_schulz_flops({64, 96}, MuonSettings().newton_schulz_steps) / 1e9;
  EXPECT_NEAR(seconds({.data_parallel = 4, .zero_stage = 1}), seconds({}) / 4, 1e-12);
  EXPECT_NEAR(seconds({.data_parallel = 2, .tensor_parallel = 2}), seconds({}) / 4, 1e-12);
  EXPECT_NEAR(seconds({.data_parallel = 64, .zero_stage = 1}), largest, 1e-12);
}

// Two equal matrices on two ranks; the link moves one element per second.
TEST(MatrixUpdate, AnOwnerSendsItsDirectionsToAllCopies) {
  ModelDescription model = model_of_four_layers();
  ClusterDescription cluster = cluster_with_free_links();
  cluster.within_node.bytes_per_second = 4;
  const auto messages = [&](const ParallelStrategy& strategy) {
    return matrix_update_seconds(model, strategy, {{0, 4}}, cluster, copus_in_fp32(Processor::cpu, OptimizerKind::muon))
        .messages;
  };
  double elements = 0;
  for (const ParameterInfo& parameter : list_parameters(model)) {
    if (is_hidden_matrix(parameter)) elements += static_cast<double>(parameter.num_elements());
  }
  EXPECT_EQ(messages({}), 0);
  // Every rank holds all momenta, owns one matrix, and sends its direction to both copies, including its own.
  EXPECT_NEAR(messages({.data_parallel = 2}), elements / 2 + elements, 1);
  // Every rank holds half of the state, and exchanges half of the momenta and directions.
  EXPECT_NEAR(messages({.data_parallel = 2, .zero_stage = 1}), elements, 1);
}

TEST(MatrixUpdate, CountsInTheOptimizersTimeOfMuonAlone) {
  Configuration configuration;
  configuration.global_batch = configuration.micro_batch = 1;
  const auto optimizer = [&](OptimizerKind kind) {
    return StepTimeModel(model_of_four_layers(), 32, cluster_with_free_links(), copus_in_fp32(Processor::cpu, kind))
        .predict(configuration)
        .optimizer;
  };
  EXPECT_EQ(optimizer(OptimizerKind::adamw), 0);  // memory traffic is free
  EXPECT_EQ(optimizer(OptimizerKind::muon), seconds({}));
}

// With short sequences, work on the largest matrix needs more memory than activations.
TEST(MatrixUpdate, CountsInTheMemoryOfMuonAlone) {
  Configuration configuration;
  configuration.global_batch = configuration.micro_batch = 1;
  const ModelDescription model = model_of_four_layers();
  const auto bytes = [&](OptimizerKind kind) {
    return MemoryModel(model, 1, copus_in_fp32(Processor::cpu, kind)).predict(configuration).parts;
  };
  const TrainingSystem muon = copus_in_fp32(Processor::cpu, OptimizerKind::muon);
  EXPECT_EQ(bytes(OptimizerKind::muon).workspace, matrix_update_bytes(model, muon));
  EXPECT_EQ(matrix_update_bytes(model, muon), 3 * 4 * 64 * 96 + 4 * (3 * 64 * 96 + 2 * 64 * 64));
  EXPECT_EQ(bytes(OptimizerKind::muon).optimizer, bytes(OptimizerKind::adamw).optimizer);
}

}  // namespace
}  // namespace copus
