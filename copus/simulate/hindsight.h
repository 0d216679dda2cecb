// The best that could have been done, by who knows the truth: the fastest single configuration, and the fastest
// sequence of configurations with the pauses between them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "copus/description/parallel_strategy.h"
#include "copus/simulate/truth.h"

namespace copus {

// Seconds of the steps of every configuration that there is.
using TrueSeconds = std::map<Configuration, double>;

// How a run ends: at a progress, or after so many seconds.
struct ScenarioEnd {
  enum class Kind { progress, seconds } kind = Kind::progress;
  double value = 0;
};

// A run from 0 to its end. Steps count by the share of them that was needed.
struct StraightRun {
  Configuration configuration;
  double seconds = 0;
  double progress = 0;
};

// Returns the run that never changes its configuration and ends first, or gets furthest; of equal ones the first.
StraightRun best_static(const Truth& truth, const TrueSeconds& seconds, const ScenarioEnd& end);

// Returns the seconds from the beginning to `progress` in one configuration with steps of `step_seconds`.
double static_seconds(const Truth& truth, const Configuration& configuration, double step_seconds, double progress);

// The clairvoyant's run: its strategy in each piece of the truth that it passes through.
struct ClairvoyantRun {
  double seconds = 0;
  double progress = 0;
  std::vector<Configuration> by_piece;  // with the batch and micro-batch that are fastest there
  int64_t relayouts = 0;
};

// Returns the run that ends first, or gets furthest, over all sequences of configurations from any first one, where a
// change of strategy takes `pause_seconds` and a change of batch or micro-batch nothing. Within a piece of the truth a
// run's seconds are linear in where it changes, so that to change at the borders of pieces alone is no restriction, and
// dynamic programming over them finds the optimum: no run over the same truth is faster.
ClairvoyantRun clairvoyant(const Truth& truth, const TrueSeconds& seconds, double pause_seconds,
                           const ScenarioEnd& end);

}  // namespace copus
