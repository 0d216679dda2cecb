// Computes the best possible results in hindsight, from the true values of a simulation, which no policy knows: the
// fastest single configuration, and the fastest sequence of configurations, including the pauses between them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "copus/description/parallel_strategy.h"
#include "copus/simulate/truth.h"

namespace copus {

// Seconds per step of every configuration.
using TrueSeconds = std::map<Configuration, double>;

// How a run ends: at a given progress, or after a given time.
struct ScenarioEnd {
  enum class Kind { progress, seconds } kind = Kind::progress;
  double value = 0;
};

// A run from 0 to its end in one configuration. Of its last step only the fraction up to the end counts.
struct StraightRun {
  Configuration configuration;
  double seconds = 0;
  double progress = 0;
};

// Returns the best run that stays in one configuration: it ends first or, if time is limited, gets furthest. Of several
// equal runs, returns the first.
StraightRun best_static(const Truth& truth, const TrueSeconds& seconds, const ScenarioEnd& end);

// Returns the seconds from the beginning to `progress` in one configuration with steps of `step_seconds`.
double static_seconds(const Truth& truth, const Configuration& configuration, double step_seconds, double progress);

// The clairvoyant run: its strategy in each interval (TruthPiece) that it passes through.
struct ClairvoyantRun {
  double seconds = 0;
  double progress = 0;
  std::vector<Configuration> by_piece;  // also with the fastest batch and micro-batch in each interval
  int64_t relayouts = 0;
};

// Returns the best run over all sequences of configurations: it ends first or, if time is limited, gets furthest. A
// change of strategy takes `pause_seconds`; a change of batch or micro-batch takes no time. Within an interval of
// progress (TruthPiece), a run's seconds are linear in the point at which it changes configuration, so changes between
// intervals are enough. Dynamic programming over the intervals therefore finds the optimum.
ClairvoyantRun clairvoyant(const Truth& truth, const TrueSeconds& seconds, double pause_seconds,
                           const ScenarioEnd& end);

}  // namespace copus
