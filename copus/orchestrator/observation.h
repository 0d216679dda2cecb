// Input of a controller: the record of one step, and events beside steps. A run's decisions are a function of the
// sequence of these alone, so that a replay of the sequence gives the same decisions. Seconds are those of the run's
// clock, batches are in samples.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "copus/base/named_values.h"
#include "copus/config/job_config.h"
#include "copus/description/parallel_strategy.h"
#include "copus/record/step_record.h"

namespace copus {

// One finished step; the fields are those of run.jsonl (record/step_record.h) that decisions may depend on. The
// configuration that it ran in is not here: it follows from the switches before it.
struct Observation {
  int64_t step = 0;              // steps so far, this one included
  int64_t consumed_samples = 0;  // samples so far, those of this step included
  double loss = 0;               // mean loss of this step; not finite on a skipped one
  double grad_norm = 0;          // norm before clipping
  double step_seconds = 0;
  double elapsed_seconds = 0;          // seconds of training so far
  double learning_rate = 0;            // of this step's update
  std::optional<SchedulePhase> phase;  // of the learning rate's schedule; empty where another program trains
  std::optional<bool> clipped;  // whether the update was scaled down to train.clip_norm; empty where there was none
  std::optional<double> small_batch, small_batch_squared_norm;
  std::optional<double> noise_scale, noise_scale_low, noise_scale_high;  // phi and its 95 % interval
  // Seconds of training that are left at the pace so far; infinite where no limit is known.
  double seconds_left = std::numeric_limits<double>::infinity();
  // Share of the run that is done, as the learning rate's schedule counts it (LearningRate::share); empty where that is
  // not known, as where another program trains and does not tell its length: then no decision and no change of the
  // batch comes sooner for it.
  std::optional<double> share_done;
};

// Makes the observation that a controller is told of a step: in the run and in a replay alike.
Observation observation_of(const StepRecord& record);

// Tells whether a gradient of this norm is scaled down; a clip_norm of 0 stands for none.
inline bool is_clipped(double gradient_norm, double clip_norm) { return clip_norm > 0 && gradient_norm > clip_norm; }

// A switch that all ranks are to make: rank 0 tells the others with the next step.
struct SwitchIntent {
  Configuration configuration;
  int64_t commit_after_step = 0;  // the step boundary
  double rate_factor = 1;         // factor on the learning rate from there on
  uint64_t inputs_hash = 0;       // hash of the inputs of the decision (Decision)
};

// The outcome of a switch.
struct SwitchReport {
  int64_t after_step = 0;  // the step boundary
  int64_t consumed_samples = 0;
  Configuration from, to;
  enum class Outcome { moved, vetoed, rolled_back } outcome = Outcome::moved;
  std::string reason;  // of a veto or roll-back: which rank, and what it lacked
  std::optional<bool> is_lack_of_memory =
      {};                                  // whether a veto or roll-back was for want of memory; empty where it moved
  std::optional<double> rate_factor = {};  // on the learning rate since then
  double pause_seconds = 0;                // in which training stood still, after the last rank had ended the step
  double prepare_seconds = 0;              // beside training, on the slowest rank
  std::map<std::string, double> phase_seconds = {};  // parts of the pause on rank 0, by phase of a change of layout
  int64_t bytes_copied = 0;                          // all ranks together
  int64_t bytes_received = 0;                        // of these, from other ranks
  int64_t peak_bytes = 0;                            // of state, on the rank that held most while it moved
  int64_t peak_bound_bytes = 0;                      // bound on peak_bytes that the plan gave
};

// A change of the ranks that a job has: some were lost, or others have come. The job trains on in `to`, which has the
// global batch of `from` and needs as many ranks as there are, or fewer: the rest are spare.
struct RanksChanged {
  int64_t after_step = 0;  // the step boundary
  int64_t ranks = 0;       // that are there, spare ones included
  Configuration from, to;
  double pause_seconds = 0;  // in which training stood still
  std::string reason;        // which ranks were lost, and how, or have come
};

template <>
inline constexpr auto named_values<SwitchReport::Outcome> =
    std::to_array<NamedValue<SwitchReport::Outcome>>({{SwitchReport::Outcome::moved, "moved"},
                                                      {SwitchReport::Outcome::vetoed, "vetoed"},
                                                      {SwitchReport::Outcome::rolled_back, "rolled back"}});

// A user's command to a running job (copus ctl).
struct Command {
  enum class Kind {
    pin,     // stay in the current configuration until unpin
    unpin,   // let the policy decide again
    pause,   // no steps until resume
    resume,  // go on after a pause
    force,   // move to `target` at the next boundary, whatever the policy says, and stay pinned there
  } kind = Kind::pin;
  std::optional<Configuration> target;  // set for `force` alone
};
template <>
inline constexpr auto named_values<Command::Kind> =
    std::to_array<NamedValue<Command::Kind>>({{Command::Kind::pin, "pin"},
                                              {Command::Kind::unpin, "unpin"},
                                              {Command::Kind::pause, "pause"},
                                              {Command::Kind::resume, "resume"},
                                              {Command::Kind::force, "force"}});

}  // namespace copus
