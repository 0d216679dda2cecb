// The clocks of a trainer's steps: that of the run, by which a record says how long a step took, and the real one, by
// which the other ranks notice one that has stalled.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "copus/comm/world.h"

namespace copus {

class StepClock {
 public:
  explicit StepClock(World& world) : world_(world) {}

  // A step begins. Its time on the rank's clock, begun_at(), counts from the moment in the step before at which the
  // ranks had agreed, but for what happened between the steps.
  void begin() {
    real_begin_ = std::chrono::steady_clock::now();
    world_.health().set_expected_step_seconds(expected_seconds_);
    begun_at_ = world_.clock().now() - seconds_after_agreement_;
  }
  double begun_at() const { return begun_at_; }
  // The step has ended; its ranks had agreed at `agreed_at` on the rank's clock.
  void end(double agreed_at) {
    seconds_after_agreement_ = std::max(0.0, world_.clock().now() - agreed_at);
    // A rank that makes no progress for a multiple of the expected time has stalled. The longest of the latest steps is
    // expected rather than the last one, so that a quick step makes no slow one look stalled.
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - real_begin_;
    expected_seconds_ = std::max(0.9 * expected_seconds_, seconds.count());
    world_.health().set_expected_step_seconds(0);  // what comes between steps takes as long as it takes
  }

  // Training has stood still for so many seconds, to change its configuration; the record of the next step says so.
  void add_pause(double seconds) { pause_seconds_ = seconds; }
  std::optional<double> take_pause() { return std::exchange(pause_seconds_, std::nullopt); }
  // However long the steps before took, those that follow are of another configuration.
  void forget_expectation() { expected_seconds_ = 0; }

 private:
  World& world_;
  double begun_at_ = 0;
  double seconds_after_agreement_ = 0;  // of the latest step
  std::optional<double> pause_seconds_;
  std::chrono::steady_clock::time_point real_begin_;
  double expected_seconds_ = 0;  // of a step, on the real clock
};

}  // namespace copus
