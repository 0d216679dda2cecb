// For tests of memory: predictions for a small model.
#pragma once

#include <cstdint>

#include "copus/performance/memory.h"

namespace copus {

inline constexpr int64_t sequence = 128;

// A model of 8 layers, with 8 heads of 16 and 4 key-value heads.
inline ModelDescription grouped_query_model() {
  ModelDescription model;
  model.vocab_size = 1024;
  model.hidden_size = 128;
  model.intermediate_size = 256;
  model.num_layers = 8;
  model.num_heads = 8;
  model.num_kv_heads = 4;
  model.head_dim = 16;
  return model;
}

inline Configuration batches_of(const ParallelStrategy& strategy, int64_t micro_batch = 2,
                                int64_t num_microbatches = 8) {
  return {.strategy = strategy,
          .global_batch = strategy.data_parallel * micro_batch * num_microbatches,
          .micro_batch = micro_batch};
}

inline MemoryParts parts_of(const Configuration& configuration, const TrainingSystem& system = copus_in_bf16(),
                            const ModelDescription& model = grouped_query_model()) {
  return MemoryModel(model, sequence, system).predict(configuration).parts;
}

}  // namespace copus
