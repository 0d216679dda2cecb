#include "copus/config/run_config.h"

namespace copus {

ParallelStrategy strategy_of(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  return {.data_parallel = parallel.data_parallel,
          .tensor_parallel = parallel.tensor_parallel,
          .pipeline_parallel = parallel.pipeline_parallel,
          .virtual_stages = parallel.virtual_stages,
          .schedule = parallel.schedule,
          .sequence_parallel = parallel.sequence_parallel,
          .zero_stage = parallel.zero_stage,
          .recompute = config.train.recompute};
}

Configuration configuration_of(const RunConfig& config) {
  return {.strategy = strategy_of(config),
          .global_batch = config.train.global_batch,
          .micro_batch = config.train.micro_batch};
}

}  // namespace copus
