// Where processes of several machines leave short texts for one another, under names: a c10d store in real jobs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "copus/comm/job/launcher.h"

namespace copus {

// Both throw RankFailure where the place is gone or does not answer, and do nothing once `is_useless` says so.
struct MeetingPlace {
  std::function<void(const std::string& name, const std::string& text)> publish;
  // Empty where nobody has published it yet. Does not wait for that.
  std::function<std::optional<std::string>(const std::string& name)> find;
};

struct MeetingAddress {
  std::string host;
  int64_t port = 0;
  bool serve = false;  // this process keeps it there, for as long as it holds the place
  double wait_seconds = 0;
  std::function<bool()> is_useless = {};  // asked several times a second while the place is waited for; ends the wait
};
// Empty where `is_useless` has said so. Throws UserError where the place cannot be reached within `wait_seconds`.
using OpenMeetingPlace = std::function<std::optional<MeetingPlace>(const MeetingAddress&)>;

// Throws UserError where the launcher of a job of several machines has not said where they meet (MASTER_ADDR,
// MASTER_PORT). `ranks_here`: those on this machine.
void check_meeting_address(const std::string& host, int64_t port, int64_t ranks_here, int64_t ranks);

// The store at MASTER_ADDR:MASTER_PORT.
std::optional<MeetingPlace> open_store(const MeetingAddress& address);

// What launch_healing_machine (launcher.h) does, with any place to meet.
int launch_healing_machine(const MachineOfJob& machine, const std::vector<std::string>& arguments,
                           const Healing& healing, const OpenMeetingPlace& open_meeting_place);

}  // namespace copus
