// Computes the learning rate as a pure function of how far a run has come: a linear warm-up, then constant, cosine or
// warm-up-stable-decay (wsd).
#pragma once

#include <cstdint>

#include "copus/config/job_config.h"

namespace copus {

// Progress of a run. `tokens` includes the batch whose learning rate is computed. So the first step of a warm-up has a
// rate above 0, and the last step of a run has exactly the final rate. `seconds` is the training time up to that step's
// update.
struct RunProgress {
  int64_t tokens = 0;
  double seconds = 0;
};

// The learning rate schedule, as a function of the tokens. A run that only max_seconds limits cannot know its tokens in
// advance, so the phases of its schedule are fractions of the time. The run log records the rates that were used.
class LearningRate {
 public:
  // Throws UserError if the run has no limit, if warm-up and decay together are longer than the run, or if wsd has a
  // decay in tokens although time alone limits the run.
  LearningRate(const OptimizerConfig& optimizer, const TrainConfig& train);

  double at(const RunProgress& progress) const;

  // Returns the phase of the schedule: warm_up until the rate reaches its peak, decay once the decay of wsd has begun,
  // otherwise main.
  SchedulePhase phase(const RunProgress& progress) const;

  // The share of the run that is done, in [0, 1].
  double share(const RunProgress& progress) const;

 private:
  double warmup_share(const RunProgress& progress) const;
  double decay_share() const;

  OptimizerConfig optimizer_;
  double total_tokens_;   // 0 if time alone limits the run
  double total_seconds_;  // 0 if tokens limit the run
};

}  // namespace copus
