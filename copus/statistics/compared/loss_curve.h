// Finds when a run's held-out loss reaches a target, from the run's evaluations.
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
    before,   // the first evaluation is already below the target, so the crossing is unknown
  };
  Kind kind = Kind::never;
  double seconds = 0;  // when the target was reached
  double tokens = 0;
};

// Returns the seconds and tokens at which a run first reaches `target`: at its first evaluation at or below `target`,
// interpolated linearly in the loss from the previous evaluation. Later evaluations above the target change nothing.
// Losses must be finite.
TargetCrossing time_to_target(std::span<const Evaluation> evaluations, double target);

}  // namespace copus
