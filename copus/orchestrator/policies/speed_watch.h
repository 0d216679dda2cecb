// Detects that the steps of one configuration have become slower or faster since the run entered it, because the speed
// of a node or of the network has changed.
#pragma once

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "copus/base/numbers/quantile.h"
#include "copus/orchestrator/state_values.h"

namespace copus {

class SpeedWatch {
 public:
  // Restarts, for another configuration.
  void restart() { *this = {}; }

  // Adds the seconds of a step.
  void add(double step_seconds) {
    std::vector<double>& open = first_.size() < compared ? first_ : latest_;
    open.push_back(step_seconds);
    if (latest_.size() <= compared) return;
    latest_.erase(latest_.begin());
  }

  // Returns whether the median step has changed by a quarter. If so, later steps are compared with the latest ones.
  bool take_change() {
    if (latest_.size() < compared) return false;
    const double change = quantile(latest_, 0.5) / quantile(first_, 0.5);
    if (!(std::abs(std::log(change)) >= std::log(least_change))) return false;
    first_ = std::exchange(latest_, {});
    return true;
  }

  void visit_state(StateValues& values) { values(first_, latest_); }

 private:
  // Medians of 16 steps that scatter by 6 % deviate by 2 % each, so chance alone does not make a change of a quarter.
  static constexpr size_t compared = 16;
  static constexpr double least_change = 1.25;

  std::vector<double> first_, latest_;  // seconds of steps, oldest first
};

}  // namespace copus
