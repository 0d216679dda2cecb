// Defines the inputs of a controller: the record of each step, and events between steps. A run's decisions depend on
// the sequence of inputs alone, so a replay of the sequence gives the same decisions. Seconds are on the run's clock,
// batches in samples.
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

// One finished step: the fields of run.jsonl (record/step_record.h) on which decisions may depend. The configuration is
// left out, because it follows from the earlier switches.
struct Observation {
  int64_t step = 0;              // steps so far, this one included
  int64_t consumed_samples = 0;  // samples so far, those of this step included
  double loss = 0;               // mean loss of this step; not finite if skipped
  double grad_norm = 0;          // norm before clipping
  double step_seconds = 0;
  double elapsed_seconds = 0;          // seconds of training so far
  double learning_rate = 0;            // of this step's update
  std::optional<SchedulePhase> phase;  // of the learning rate's schedule; empty if another program trains
  std::optional<bool> clipped;         // whether train.clip_norm scaled the update down; empty without update
  std::optional<double> small_batch, small_batch_squared_norm;
  std::optional<double> noise_scale, noise_scale_low, noise_scale_high;  // phi and its 95 % interval
  // Seconds of training left at the pace so far; infinite if no limit is known.
  double seconds_left = std::numeric_limits<double>::infinity();
  // The completed fraction of the run, as the learning rate's schedule counts it (LearningRate::share). Empty if
  // unknown, for example if another program trains and does not report the length of its run. If unknown, a short run
  // has the same intervals between decisions, and between changes of the batch, as a long run.
  std::optional<double> share_done;
};

// Makes a controller's observation of a step, in the run and in a replay.
Observation observation_of(const StepRecord& record);

// Whether a gradient of this norm is clipped; a clip_norm of 0 means no clipping.
inline bool is_clipped(double gradient_norm, double clip_norm) { return clip_norm > 0 && gradient_norm > clip_norm; }

// A switch that all ranks will make: rank 0 sends it to the others with the next step.
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
  std::string reason;                                // of a veto or roll-back: which rank, and what it lacked
  std::optional<bool> is_lack_of_memory = {};        // whether memory was lacking; empty if the run moved
  std::optional<double> rate_factor = {};            // on the learning rate from there on
  double pause_seconds = 0;                          // without training, from the end of the step on the last rank
  double prepare_seconds = 0;                        // overlapped with training, on the slowest rank
  std::map<std::string, double> phase_seconds = {};  // parts of the pause on rank 0, by phase of a change of layout
  int64_t bytes_copied = 0;                          // all ranks together
  int64_t bytes_received = 0;                        // of these, from other ranks
  int64_t peak_bytes = 0;                            // of state during the move, on the rank with most
  int64_t peak_bound_bytes = 0;                      // the plan's bound on peak_bytes
};

// A change of the job's ranks: some were lost, or others joined. The job continues in `to`, which has the global batch
// of `from` and needs at most as many ranks as the job has. Ranks that `to` does not need are spare.
struct RanksChanged {
  int64_t after_step = 0;  // the step boundary
  int64_t ranks = 0;       // that the job now has, spare ones included
  Configuration from, to;
  double pause_seconds = 0;  // without training
  std::string reason;        // which ranks were lost, and how, or joined
};

// A calibration of the run by its own branches (run_calibration.h). Amounts are in samples.
struct RunCalibration {
  int64_t step = 0;  // the step boundary where the branches left the run
  int64_t consumed_samples = 0;
  std::optional<double> share_done = {};  // of the run, as in Observation
  int64_t batch = 0;                      // the run's, to which the branches' batch is compared
  int64_t branch_batch = 0;
  int64_t branches = 0;    // whose losses count
  double noise_scale = 0;  // of the run there
  double seconds = 0;      // for which the run stood still
  // The result and the standard deviation of its logarithm; empty: see `reason`.
  std::optional<double> critical_batch = {}, deviation = {};
  std::string reason = {};  // why the branches show no critical batch; empty if they do
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
    resume,  // continue after a pause
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
