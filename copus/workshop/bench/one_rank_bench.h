// Measures for `copus bench step --as` the computing speed of one rank of a layout without the other ranks. Kernels
// have the layout's shapes, and the host issues the same operations, but communication takes no time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/description/parallel_strategy.h"
#include "copus/workshop/bench/step_bench.h"

namespace copus {

struct OneRankResult {
  std::string precision;
  std::vector<double> step_seconds;  // ascending
  int64_t peak_memory_bytes = 0;     // live tensors on the device at the peak of a step
};

// Trains as rank 0 of the layout, and measures `steps` steps after some warm-up steps. In each step this rank runs
// options.micro_batches micro-batches. Other ranks do not exist and send nothing, so losses and gradients are
// meaningless. Throws UserError for layouts that the model does not allow. Also throws UserError for layouts with
// pipelines or ZeRO-3, because a rank of such a layout needs the contents of messages.
OneRankResult measure_one_rank(const StepBenchOptions& options, const ParallelStrategy& strategy, int64_t steps);

}  // namespace copus
