// How fast one rank of a layout computes while the others are not there: kernels have the shapes of the layout, the
// host issues what it would issue, and communication takes no time. What `copus bench step --as` prints.
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
  int64_t peak_memory_bytes = 0;     // live tensors on the device at the highest point of a step
};

// Trains as rank 0 of the layout, after some steps to warm up. Each step has options.micro_batches of this rank. What
// the other ranks would have added or sent is missing, so no number means anything but the times. Throws UserError for
// layouts that the model does not allow, with pipelines, or with ZeRO-3: a rank would wait there for content.
OneRankResult measure_one_rank(const StepBenchOptions& options, const ParallelStrategy& strategy, int64_t steps);

}  // namespace copus
