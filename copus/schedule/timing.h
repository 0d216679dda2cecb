// How long a schedule takes: replays it with given times of its actions.
#pragma once

#include <vector>

#include "copus/schedule/schedule.h"

namespace copus {

// Seconds of one micro-batch on one stage, and of one message from it to its neighbour.
struct StageSeconds {
  double forward = 0;
  double backward_input = 0;
  double backward_weight = 0;
  double send = 0;
  bool operator==(const StageSeconds&) const = default;
};

// One action as it happened. A receive ends when its message is there; a send ends when its message has arrived, while
// its rank goes on at once.
struct TimedAction {
  Action action;
  double begin = 0;
  double end = 0;
};

struct ScheduleTiming {
  double seconds = 0;                           // until the last rank is done
  std::vector<double> busy_seconds;             // by pipeline rank: F, B and W
  std::vector<std::vector<TimedAction>> ranks;  // what happened when
  // The share of all ranks' time in which they compute nothing.
  double bubble() const;
};

// `stages`: seconds by stage (num_stages of them). Messages of one directed pair follow one another: each leaves when
// it was sent and the one before it has arrived. Throws InternalError when the schedule deadlocks: check it first.
ScheduleTiming time_schedule(const Schedule& schedule, const std::vector<StageSeconds>& stages);

// The bubble that the literature gives for equal stages and free messages, f, b and w being the seconds of one rank's
// whole share of the model (all chunks) for one micro-batch:
// gpipe and 1f1b (p-1) / (m + p-1) (Narayanan et al. 2021, section 2.2; any f, b, w);
// interleaved (p-1) / (v m + p-1) (section 2.2.2);
// zb-h1 idle / (m (f+b+w) + idle) with idle = (p-1)(f + b - w) (Qi et al. 2023, table 2) where m >= p and w <= b. In
// general, M being min(m, p), idle = (p-1) f + (p-M) b + (M-1) max(b - w, 0): the last rank waits for its first F, and
// after its last B the gradient's way to rank 0 takes (p-1) b, of which M - 1 W's that are left fill what they can.
double bubble_formula(PipelineSchedule kind, int64_t pipeline_parallel, int64_t virtual_stages,
                      int64_t num_microbatches, double forward, double backward_input, double backward_weight);

}  // namespace copus
