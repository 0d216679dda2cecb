// The configurations from which a planner chooses.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

struct SearchSpace {
  int64_t world_size = 1;
  std::vector<int64_t> global_batches;
  std::vector<int64_t> micro_batches;  // empty: powers of two
  std::vector<PipelineSchedule> schedules = all_values<PipelineSchedule>();
  InterleavedRounds interleaved_rounds = InterleavedRounds::of_pipeline_ranks;
  std::vector<int64_t> virtual_stages;  // for interleaved; empty: powers of two, and even splits of the layers
  std::vector<Recompute> recomputes = all_values<Recompute>();
  std::vector<bool> sequence_parallel = {false, true};
  std::vector<int64_t> zero_stages = {0, 1, 2, 3};
  std::vector<bool> reshard_after_forward = {false, true};
  std::vector<int64_t> zero_replicas = {1};          // if a layout allows none of them: 1
  int64_t max_tensor_parallel = 0;                   // commonly a node's ranks; 0: the model's limit
  std::function<bool(const Configuration&)> allows;  // an additional condition; empty: none
};

// Lists all configurations that infeasible_reason and the space allow, without duplicates, sorted by strategy, global
// batch and micro-batch. Options without an effect have one fixed value, whatever the lists contain. Without a pipeline
// the schedule is 1f1b (gpipe would keep more activations). With t = 1 there is no sequence parallelism, with d = 1 no
// ZeRO, and without ZeRO-3 no resharding.
std::vector<Configuration> enumerate(const ModelDescription& model, int64_t sequence_length, const SearchSpace& space);

}  // namespace copus
