// How long the pipeline of a step takes, without replaying its schedule for each candidate: replays are remembered as
// their critical paths.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "copus/schedule/timing.h"
#include "copus/strategy/parallel_strategy.h"

namespace copus {

// For one thread.
class PipelineTimes {
 public:
  PipelineTimes();
  ~PipelineTimes();

  // What time_schedule gives for make_schedule(kind, p, v, m) with these seconds by stage (p * v of them), to 1 %.
  // A replay's critical path is a sum of stages' seconds, each counted so often, and every path is a lower bound
  // whatever the seconds: the longest of the remembered paths is the answer where one of them is critical. In m the
  // counts are affine beyond the pipeline's fill.
  double seconds(PipelineSchedule kind, int64_t pipeline_parallel, int64_t virtual_stages, int64_t num_microbatches,
                 const std::vector<StageSeconds>& stages);

 private:
  struct Memo;
  std::unique_ptr<Memo> memo_;
};

}  // namespace copus
