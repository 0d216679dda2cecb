// The messages between a launcher and its ranks in a job whose ranks come and go. Each rank inherits a socket for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/comm/descriptor.h"
#include "copus/comm/job/member/epoch.h"
#include "copus/comm/shared_memory/state_arena.h"

namespace copus {

struct FromRank {
  enum class Kind : int64_t {
    ready = 1,
    wants_to_leave,
    wants_to_stop,  // ends the job: the remaining members cannot take over from those that leave
    keeps_arena,    // carries the descriptor of the sender's memory, which the launcher keeps after the sender's end
    settled,        // all members of the epoch have their state: memory of earlier processes is no longer needed
    notes,          // carries `note`, for newcomers that find no other rank
    advances,       // training has passed the latest step so far
    // If the launcher cannot see the ranks' health itself, ranks also report about their worlds:
    joined,
    left,     // in good order, or because of a failure
    garbled,  // the received bytes are none of these messages
  };
  Kind kind = Kind::ready;
  // About the world that was left.
  std::optional<FailureReport> failure = {};
  double expected_step_seconds = 0;
  std::string note = {};  // for `notes`
};

struct FromLauncher {
  enum class Kind : int64_t {
    regroup = 1,  // leave this epoch at the end of a step
    go,           // there is no next epoch for this process
    epoch,        // the next one
    stop,         // end the job in good order
  };
  Kind kind = Kind::regroup;
  // The next epoch: its value, the receiver's rank in it, and its segment, if the job has one.
  Epoch epoch;
  int64_t rank = 0;
  Descriptor segment;
  // When the job began, by this machine's steady clock, in nanoseconds; 0 if the segment has the time.
  int64_t job_started = 0;
  std::vector<KeptArena> kept = {};  // by the launcher of this machine
};

// The message that a launcher repeatedly sends to its ranks through a separate socket (lifeline.h). It says that the
// launcher is alive, or that an epoch has failed.
struct FromLifeline {
  int64_t epoch = -1;
  std::optional<FailureReport> failure = {};
};

// Returns two connected ends, which exec closes. Throws InternalError if they cannot be made.
std::pair<Descriptor, Descriptor> control_sockets();

// These do not block. They return false if the other end is closed or accepts no more.
bool send(const Descriptor& socket, const FromRank& message, int descriptor = -1);
bool send(const Descriptor& socket, FromLauncher::Kind kind);
bool send_epoch(const Descriptor& socket, const Epoch& epoch, int64_t rank, int segment, int64_t job_started = 0,
                const std::vector<KeptArena>& kept = {});
bool send(const Descriptor& socket, const FromLifeline& message);

// Returns the next message, or nothing if there is none; does not block. `arena` receives the descriptor that came with
// the message, if any. Closes the socket if the other end is closed. Throws InternalError if the bytes from the
// launcher are not a message.
std::optional<FromRank> receive_from_rank(Descriptor* socket, Descriptor* arena = nullptr);
std::optional<FromLauncher> receive_from_launcher(Descriptor* socket);
std::optional<FromLifeline> receive_from_lifeline(Descriptor* socket);

// A rank's message in its sent form, for launchers that forward it. `from_rank` returns empty for other bytes.
std::string packed(const FromRank& message);
std::optional<FromRank> from_rank(std::string_view bytes);

}  // namespace copus
