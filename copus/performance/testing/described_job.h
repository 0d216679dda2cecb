// For tests of predictions: a described job, a model of a billion parameters on nodes of four devices.
#pragma once

#include <cstdint>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/placement/relayout_plan.h"

namespace copus {

inline constexpr int64_t described_sequence_length = 1024;

inline ModelDescription described_model() {
  ModelDescription model;
  model.vocab_size = 32000;
  model.hidden_size = 2048;
  model.intermediate_size = 5632;
  model.num_layers = 16;
  model.num_heads = 16;
  model.num_kv_heads = 16;
  model.head_dim = 128;
  return model;
}

inline ClusterDescription described_cluster() {
  ClusterDescription cluster;
  cluster.ranks_per_node = 4;
  cluster.within_node = {1e-6, 100e9};
  cluster.between_nodes = {5e-6, 10e9};
  cluster.device.memory_bytes = 40e9;
  cluster.device.memory_bytes_per_second = 1e12;
  cluster.device.matmul_flops_per_second = 100e12;
  return cluster;
}

// Returns the request of a re-layout of this job.
inline RelayoutRequest described_relayout(const ParallelStrategy& from, const ParallelStrategy& to) {
  return {.model = described_model(),
          .sequence_length = described_sequence_length,
          .from = from,
          .to = to,
          .recipe = state_recipe(OptimizerKind::adamw, DType::bf16),
          .ranks_per_node = described_cluster().ranks_per_node};
}

}  // namespace copus
