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

// Trains as rank 0 of the layout, after some warm-up steps. Each step has options.micro_batches micro-batches of this
// rank. The contributions and messages of other ranks are missing, so only the times are meaningful. Throws UserError
// for layouts that the model does not allow, for layouts with pipelines, and for layouts with ZeRO-3, whose ranks need
// the contents of messages.
OneRankResult measure_one_rank(const StepBenchOptions& options, const ParallelStrategy& strategy, int64_t steps);

}  // namespace copus
