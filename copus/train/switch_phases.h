// What a switch does one after the other: told to whoever asks where this rank is, and timed.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "copus/comm/world.h"

namespace copus {

class SwitchPhases {
 public:
  // Of the switch after this step. Refers to `world` for its whole life.
  SwitchPhases(World& world, int64_t after_step) : world_(world), after_step_(after_step) {}

  // Until the last rank has ended the step; not timed, since no switch is the reason.
  void wait_for_all_ranks();
  // The phase before ends, and this one begins. `detail`: how far it has come, which is told and not timed by itself.
  void begin(const std::string& phase, const std::string& detail = "");
  // The last phase ends. Returns the seconds of each on the rank's clock.
  std::map<std::string, double> end();

 private:
  void tell(const std::string& place);
  void end_phase();

  World& world_;
  int64_t after_step_;
  std::string phase_;  // empty: none has begun
  double begin_ = 0;
  std::map<std::string, double> seconds_;
};

}  // namespace copus
