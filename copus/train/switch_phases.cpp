#include "copus/train/switch_phases.h"

#include <utility>

#include "copus/base/error.h"

namespace copus {

void SwitchPhases::wait_for_all_ranks() {
  tell("waiting for all ranks");
  world_.everyone().barrier();
}

void SwitchPhases::begin(const std::string& phase, const std::string& detail) {
  end_phase();
  phase_ = phase;
  tell(detail.empty() ? phase : concat(phase, ", ", detail));
}

std::map<std::string, double> SwitchPhases::end() {
  end_phase();
  world_.health().set_place(concat("after the switch behind step ", after_step_));
  return std::exchange(seconds_, {});
}

void SwitchPhases::tell(const std::string& place) {
  world_.health().set_place(concat("switching after step ", after_step_, ": ", place));
}

void SwitchPhases::end_phase() {
  const double end = world_.clock().now();
  if (!phase_.empty()) seconds_[phase_] += end - begin_;
  phase_.clear();
  begin_ = end;
}

}  // namespace copus
