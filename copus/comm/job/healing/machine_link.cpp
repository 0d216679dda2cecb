#include "copus/comm/job/healing/machine_link.h"

#include <algorithm>

#include "copus/comm/job/member/lifeline.h"

namespace copus {

namespace {

constexpr char kind_of_message = 'm';
constexpr char kind_of_sign = 's';

}  // namespace

void MachineLink::send(std::string_view message) {
  link_.send(kind_of_message, message);
  link_.exchange();
}

// No sign of life is queued while the other end does not read: further signs would only fill this process' memory.
void MachineLink::exchange(double seconds) {
  silent_seconds_ += std::min(seconds, longest_look_for_signs);
  seconds_since_sign_ += seconds;
  if (seconds_since_sign_ >= sign_of_life_seconds && link_.all_sent()) {
    seconds_since_sign_ = 0;
    link_.send(kind_of_sign, "");
  }
  link_.exchange();
}

std::optional<std::string> MachineLink::next() {
  while (auto text = link_.next()) {
    silent_seconds_ = 0;
    if (text->kind == kind_of_message) return std::move(text->content);
  }
  return std::nullopt;
}

}  // namespace copus
