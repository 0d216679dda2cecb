#include "copus/orchestrator/policies/move_value.h"

#include <algorithm>
#include <cmath>

#include "copus/base/error.h"

namespace copus {

namespace {

// Probability that a standard normal deviate is below z.
double normal_below(double z) { return std::erfc(-z / std::sqrt(2.0)) / 2; }

// Expected shares of the time: saved if the target is better, and lost if it is worse.
struct Shares {
  double saved, lost, probably_better;
};

Shares shares_of(double gain, double deviation) {
  const double ratio = std::exp(-gain + deviation * deviation / 2);
  if (deviation == 0) return {std::max(0.0, 1 - ratio), std::max(0.0, ratio - 1), gain > 0 ? 1.0 : 0.0};
  const double better = normal_below(gain / deviation);
  const double ratio_where_better = ratio * normal_below(gain / deviation - deviation);
  return {better - ratio_where_better, ratio - ratio_where_better - (1 - better), better};
}

}  // namespace

double expected_seconds_saved(const MoveProspect& move, double horizon_seconds) {
  COPUS_CHECK(move.deviation >= 0 && move.pause_seconds >= 0 && horizon_seconds >= 0, move.deviation, ", ",
              move.pause_seconds, ", ", horizon_seconds);
  const Shares shares = shares_of(move.gain, move.deviation);
  const double after_pause = std::max(0.0, horizon_seconds - move.pause_seconds);
  return after_pause * shares.saved - move.trial_seconds * shares.lost -
         move.pause_seconds * (2 - shares.probably_better) - move.price_seconds;
}

}  // namespace copus
