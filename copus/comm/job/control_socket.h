// What a launcher and its ranks tell each other where ranks come and go, each through a socket that the rank inherits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/comm/descriptor.h"
#include "copus/comm/job/epoch.h"
#include "copus/comm/shared_memory/state_arena.h"

namespace copus {

struct FromRank {
  enum class Kind : int64_t {
    ready = 1,
    wants_to_leave,
    wants_to_stop,  // ends the job: the others cannot take over from those that leave
    keeps_arena,  // carries the descriptor of the sender's memory, which the launcher keeps after the sender has ended
    settled,      // all members of the epoch have their state: memory of earlier processes is not needed any more
    notes,        // carries `note`, for newcomers that find nobody else
    advances,     // training has passed the latest step so far
    // Where the launcher does not see the ranks' health itself, they also tell it of their worlds:
    joined,
    left,     // in good order, or for a failure
    garbled,  // what came is none of these
  };
  Kind kind = Kind::ready;
  // Of a world that was left.
  std::optional<FailureReport> failure = {};
  double expected_step_seconds = 0;
  std::string note = {};  // of `notes`
};

struct FromLauncher {
  enum class Kind : int64_t {
    regroup = 1,  // leave this epoch at the end of a step
    go,           // there is no next epoch for you
    epoch,        // the next one
    stop,         // end the job in good order
  };
  Kind kind = Kind::regroup;
  // Of the next epoch: its value, which rank the receiver is in it, and its segment, where the job has one.
  Epoch epoch;
  int64_t rank = 0;
  Descriptor segment;
  // When the job began, by this machine's steady clock, in nanoseconds; 0 where the segment tells.
  int64_t job_started = 0;
  std::vector<KeptArena> kept = {};  // by the launcher of this machine
};

// What a launcher says to its ranks all the time, through a socket of its own (lifeline.h): that it is there, or that
// an epoch has failed.
struct FromLifeline {
  int64_t epoch = -1;
  std::optional<FailureReport> failure = {};
};

// Two ends, which exec closes. Throws InternalError where there are none to be had.
std::pair<Descriptor, Descriptor> control_sockets();

// These do not wait, and give false where the other end is closed or takes no more.
bool send(const Descriptor& socket, const FromRank& message, int descriptor = -1);
bool send(const Descriptor& socket, FromLauncher::Kind kind);
bool send_epoch(const Descriptor& socket, const Epoch& epoch, int64_t rank, int segment, int64_t job_started = 0,
                const std::vector<KeptArena>& kept = {});
bool send(const Descriptor& socket, const FromLifeline& message);

// The next message. Does not wait: where there is none, it is empty. Closes the socket where the other end is closed.
// Throws InternalError where what came from the launcher is no message.
// `arena`: receives the descriptor that came with it, if one did.
std::optional<FromRank> receive_from_rank(Descriptor* socket, Descriptor* arena = nullptr);
std::optional<FromLauncher> receive_from_launcher(Descriptor* socket);
std::optional<FromLifeline> receive_from_lifeline(Descriptor* socket);

// What a rank says as it is sent, for launchers that pass it on; empty for what is no such message.
std::string packed(const FromRank& message);
std::optional<FromRank> from_rank(std::string_view bytes);

}  // namespace copus
