// The learning rate as a pure function of how far a run has come: a linear warm-up, then constant, cosine or
// warm-up-stable-decay (wsd).
#pragma once

#include <cstdint>

#include "copus/config/job_config.h"

namespace copus {

// Progress of a run. `tokens` includes the batch that the learning rate is wanted for, so that the first step of a
// warm-up is not lost and the last step of a run ends exactly at the final rate; `seconds` is the training time up to
// the update of that step.
struct RunProgress {
  int64_t tokens = 0;
  double seconds = 0;
};

// The learning rate schedule, clocked in tokens. A run that is limited by max_seconds alone cannot know its tokens in
// advance: shares of the run are then shares of the time, and the run log says which rate was used.
class LearningRate {
 public:
  // Throws UserError where the schedule cannot be clocked: wsd with a decay given in tokens in a run that is limited by
  // time alone, warm-up and decay that together are longer than the run, or no limit at all.
  LearningRate(const OptimizerConfig& optimizer, const TrainConfig& train);

  double at(const RunProgress& progress) const;

  // The part of the schedule that this progress is in: the warm-up while the rate is below its highest, the decay where
  // that of wsd has begun.
  SchedulePhase phase(const RunProgress& progress) const;

  // The share of the run that is done, in [0, 1].
  double share(const RunProgress& progress) const;

 private:
  double warmup_share(const RunProgress& progress) const;
  double decay_share() const;

  OptimizerConfig optimizer_;
  double total_tokens_;   // 0 where the run is limited by time alone
  double total_seconds_;  // limit of a run that is limited by time alone
};

}  // namespace copus
