// A place where processes on several machines leave short named texts for one another. In real jobs it is a c10d store.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "copus/comm/job/start/launcher.h"

namespace copus {

// Both functions throw RankFailure if the meeting place is gone or does not answer. Once `is_useless` (MeetingAddress)
// returns true, they do nothing.
struct MeetingPlace {
  std::function<void(const std::string& name, const std::string& text)> publish;
  // Returns the text, or nothing if it has not been published yet. Does not wait.
  std::function<std::optional<std::string>(const std::string& name)> find;
};

struct MeetingAddress {
  std::string host;
  int64_t port = 0;
  bool serve = false;  // this process serves the place as long as it holds the MeetingPlace
  double wait_seconds = 0;
  std::function<bool()> is_useless = {};  // called several times per second while waiting; true ends the wait
};
// Returns nothing if `is_useless` has returned true. Throws UserError if the place cannot be reached within
// `wait_seconds`.
using OpenMeetingPlace = std::function<std::optional<MeetingPlace>(const MeetingAddress&)>;

// Throws UserError if the launcher of a job on several machines has not set MASTER_ADDR and MASTER_PORT, where its
// ranks meet. `ranks_here`: the number of ranks on this machine.
void check_meeting_address(const std::string& host, int64_t port, int64_t ranks_here, int64_t ranks);

// The store at MASTER_ADDR:MASTER_PORT.
std::optional<MeetingPlace> open_store(const MeetingAddress& address);

// launch_healing_machine (launcher.h) with a given meeting place, for tests.
int launch_healing_machine(const MachineOfJob& machine, const std::vector<std::string>& arguments,
                           const Healing& healing, const OpenMeetingPlace& open_meeting_place);

}  // namespace copus
