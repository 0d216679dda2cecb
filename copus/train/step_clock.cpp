#include "copus/train/step_clock.h"

#include <algorithm>
#include <utility>

namespace copus {

void StepClock::begin() {
  real_begin_ = std::chrono::steady_clock::now();
  world_.health().set_expected_step_seconds(expected_seconds_);
  begun_at_ = world_.clock().now() - seconds_after_agreement_;
}

void StepClock::end(double agreed_at) {
  seconds_after_agreement_ = std::max(0.0, world_.clock().now() - agreed_at);
  // A rank that makes no progress for a multiple of the expected time has stalled. The longest of the latest steps is
  // expected rather than the last one, so that a quick step makes no slow one look stalled.
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - real_begin_;
  expected_seconds_ = std::max(0.9 * expected_seconds_, seconds.count());
  world_.health().set_expected_step_seconds(0);  // what comes between steps takes as long as it takes
}

std::optional<double> StepClock::take_pause() { return std::exchange(pause_seconds_, std::nullopt); }

}  // namespace copus
