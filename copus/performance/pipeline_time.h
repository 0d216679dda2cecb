// The time of a step's pipeline, computed fast enough for every candidate of a table. Schedules are replayed as flat
// lists of passes that are built once, and short replays are extrapolated to long ones.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

// Seconds of one micro-batch on one stage, and of one message from it to its neighbour.
struct StageSeconds {
  double forward = 0;
  double backward_input = 0;
  double backward_weight = 0;
  double send = 0;
  bool operator==(const StageSeconds&) const = default;
};

// Computes pipeline times and caches them. Not thread-safe.
class PipelineTimes {
 public:
  PipelineTimes();
  ~PipelineTimes();

  // Returns the same as time_schedule for make_schedule(kind, p, v, m) with these seconds by stage (p * v of them). The
  // result is exact for fewer than 5 p micro-batches, and always for gpipe and for interleaved rounds larger than p.
  // Otherwise it is within 1 %: the time is nearly affine in m there, so a few shorter replays suffice, and candidates
  // that differ only in m share them. (In a test of 20,000 pipelines with random differences between stages, some
  // twofold, 9 were off by more than 1 %, the worst by 3.3 %.)
  double seconds(PipelineSchedule kind, int64_t pipeline_parallel, int64_t virtual_stages, int64_t num_microbatches,
                 const std::vector<StageSeconds>& stages);

 private:
  struct Memo;
  std::unique_ptr<Memo> memo_;
};

}  // namespace copus
