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
};

// One action as it happened.
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

// `stages`: seconds by stage (num_stages of them). Throws InternalError when the schedule deadlocks: check it first.
ScheduleTiming time_schedule(const Schedule& schedule, const std::vector<StageSeconds>& stages);

// The bubble that the literature gives for equal stages and free messages, f, b and w being the seconds of one rank's
// whole share of the model (all chunks) for one micro-batch:
// gpipe and 1f1b (p-1) / (m + p-1); interleaved (p-1)/v more such units over m: (p-1) / (v m + p-1);
// zb-h1 (p-1)(f + b - w) / (m (f+b+w) + (p-1)(f + b - w)).
double bubble_formula(PipelineSchedule kind, int64_t pipeline_parallel, int64_t virtual_stages,
                      int64_t num_microbatches, double forward, double backward_input, double backward_weight);

}  // namespace copus
