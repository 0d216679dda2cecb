// What a controller is told: the record of one step, and what happened beside steps. A run's decisions are a function
// of the sequence of these alone, so that a replay of the sequence gives the same decisions. Seconds are those of the
// run's clock, batches are in samples.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "copus/description/parallel_strategy.h"

namespace copus {

// One finished step; the fields are those of run.jsonl (report/step_record.h) that decisions may depend on. The
// configuration that it ran in is not here: it follows from the switches before it.
struct Observation {
  int64_t step = 0;              // this one included
  int64_t consumed_samples = 0;  // likewise
  double loss = 0;               // of this step; not finite on a skipped one
  double grad_norm = 0;          // before clipping
  double step_seconds = 0;
  double elapsed_seconds = 0;  // training so far
  std::optional<double> small_batch, small_batch_squared_norm;
  std::optional<double> noise_scale, noise_scale_low, noise_scale_high;  // phi and its 95 % interval
  // Training that is left at the pace so far; infinite where no limit is known.
  double seconds_left = std::numeric_limits<double>::infinity();
};

// A switch that all ranks are to make: rank 0 tells the others with the next step.
struct SwitchIntent {
  Configuration configuration;
  int64_t commit_after_step = 0;  // the step boundary
  double critical_batch = 0;      // B_c that the learning rate's factor counts with until the next switch; 0: not known
  uint64_t inputs_hash = 0;       // of what was decided from (Decision)
};

// What came of it.
struct SwitchReport {
  int64_t after_step = 0;  // the step boundary
  int64_t consumed_samples = 0;
  Configuration from, to;
  enum class Outcome { moved, vetoed, rolled_back } outcome = Outcome::moved;
  std::string reason;          // of a veto or roll-back: which rank, what it lacked
  double critical_batch = 0;   // that the learning rate counts with since; 0: not known
  double pause_seconds = 0;    // for which training stood still, since the last rank had ended the step
  double prepare_seconds = 0;  // beside training, of the slowest rank
  std::map<std::string, double> phase_seconds = {};  // of the pause on rank 0, by what a change of layout was doing
  int64_t bytes_copied = 0;                          // all ranks together
  int64_t bytes_received = 0;                        // of these, from other ranks
  int64_t peak_bytes = 0;                            // of state, on the rank that held most while it moved
  int64_t peak_bound_bytes = 0;                      // as the plan had said
};

// A person's command to a running job (copus ctl).
struct Command {
  enum class Kind {
    pin,     // stay in the current configuration until unpin
    unpin,   // the policy decides again
    pause,   // no steps until resume
    resume,  // after a pause
    force,   // move to `target` at the next boundary, whatever the policy says, and stay pinned there
  } kind = Kind::pin;
  std::optional<Configuration> target;  // of force
};

}  // namespace copus
