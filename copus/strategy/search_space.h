// The configurations among which a planner chooses.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/strategy/parallel_strategy.h"

namespace copus {

struct SearchSpace {
  int64_t world_size = 1;
  std::vector<int64_t> global_batches;
  std::vector<int64_t> micro_batches;  // empty: powers of two
  std::vector<PipelineSchedule> schedules = {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                                             PipelineSchedule::interleaved_1f1b, PipelineSchedule::zb_h1};
  std::vector<Recompute> recomputes = {Recompute::none, Recompute::attention, Recompute::full};
  std::vector<bool> sequence_parallel = {false, true};
  std::vector<int64_t> zero_stages = {0, 1};
  int64_t max_tensor_parallel = 0;  // 0: no limit but the model's. A node's ranks, commonly
};

// All that infeasible_reason allows, in a fixed order. What makes no difference appears once: without a pipeline one
// schedule, with t = 1 no sequence parallelism, with d = 1 no ZeRO.
std::vector<Configuration> enumerate(const ModelDescription& model, int64_t sequence_length, const SearchSpace& space);

}  // namespace copus
