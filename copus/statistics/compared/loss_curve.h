// When a run's held-out loss has come down to a target, from the evaluations of the run.
#pragma once

#include <span>

namespace copus {

struct Evaluation {
  double seconds = 0;  // of training so far, on the run's clock
  double tokens = 0;   // consumed so far
  double loss = 0;     // held-out loss, nats per token
};

struct TargetCrossing {
  enum class Kind {
    reached,  // between two evaluations, or at one
    never,    // no evaluation is at or below the target
    before,   // the first evaluation is below the target already, so that nobody knows when it was reached
  };
  Kind kind = Kind::never;
  double seconds = 0;  // of a target that was reached
  double tokens = 0;
};

// Finds the first of the evaluations, which are in the order of the run, that is at or below `target`, and interpolates
// linearly in the loss between it and the one before: seconds and tokens at which the straight line between the two
// crosses the target. Later evaluations above the target change nothing. Losses must be finite.
TargetCrossing time_to_target(std::span<const Evaluation> evaluations, double target);

}  // namespace copus
