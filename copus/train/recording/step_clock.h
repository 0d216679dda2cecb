// The clocks of a trainer's steps. Rank 0's clock is the run's clock, from which the record takes a step's duration.
// Other ranks use the real clock to notice stalled ranks.
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

  // Begins a step. On the rank's clock the step starts at begun_at(), when the ranks agreed on the previous step. So
  // the step includes the time from that agreement to the previous step's end(), except the time in leave_out().
  void begin() {
    real_begin_ = std::chrono::steady_clock::now();
    world_.health().set_expected_step_seconds(expected_seconds_);
    begun_at_ = world_.clock().now() - seconds_after_agreement_;
    left_out_seconds_ = 0;
  }
  double begun_at() const { return begun_at_; }
  // Runs `work` after the ranks have agreed, and counts its time as time between steps.
  template <class Work>
  void leave_out(const Work& work) {
    const double begin = world_.clock().now();
    work();
    left_out_seconds_ += world_.clock().now() - begin;
  }
  // Ends the step. The ranks agreed at `agreed_at` on the rank's clock.
  void end(double agreed_at) {
    seconds_after_agreement_ = std::max(0.0, world_.clock().now() - agreed_at - left_out_seconds_);
    // A rank without progress for a multiple of the expected step time counts as stalled. The expected time is the
    // longest of the latest steps, so that a slow step after a fast one does not count as a stall.
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - real_begin_;
    expected_seconds_ = std::max(0.9 * expected_seconds_, seconds.count());
    world_.health().set_expected_step_seconds(0);  // work between steps has no expected time
  }

  // Adds a pause of training before the next step, whose record contains the sum of such pauses.
  void add_pause(double seconds) { pause_seconds_ = pause_seconds_.value_or(0) + seconds; }
  std::optional<double> take_pause() { return std::exchange(pause_seconds_, std::nullopt); }
  // Drops the expected step time, because the next steps run in another configuration.
  void forget_expectation() { expected_seconds_ = 0; }

 private:
  World& world_;
  double begun_at_ = 0;
  double left_out_seconds_ = 0;
  double seconds_after_agreement_ = 0;  // of the latest step
  std::optional<double> pause_seconds_;
  std::chrono::steady_clock::time_point real_begin_;
  double expected_seconds_ = 0;  // of a step, on the real clock
};

}  // namespace copus
