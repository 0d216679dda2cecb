// The messages between a launcher and its ranks in a job whose ranks come and go. They travel through a socket that
// each rank inherits.
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
    wants_to_stop,  // ends the job: the remaining members cannot take over the state of leaving ones
    keeps_arena,    // carries the descriptor of the sender's memory, which the launcher keeps after the sender's end
    settled,        // all members of the epoch have their state: memory of earlier processes is no longer needed
    notes,          // carries `note`, for an epoch whose members are all new
    advances,       // training has passed the furthest step reached so far
    // Sent only to launchers that cannot see the ranks' health themselves. They report about the rank's current world:
    joined,
    left,     // in good order, or because of a failure
    garbled,  // stands for received bytes that are not a message
  };
  Kind kind = Kind::ready;
  // `left`: the failure because of which the rank has left its world, if any.
  std::optional<FailureReport> failure = {};
  double expected_step_seconds = 0;
  std::string note = {};  // for `notes`
};

struct FromLauncher {
  enum class Kind : int64_t {
    regroup = 1,  // leave this epoch at the end of a step
    go,           // this process is not in the next epoch and should end
    epoch,        // begins the next epoch
    stop,         // end the job in good order
  };
  Kind kind = Kind::regroup;
  // The next epoch: its value, the receiver's rank in it, and its segment, if the job has one.
  Epoch epoch;
  int64_t rank = 0;
  Descriptor segment;
  // When the job began: nanoseconds on this machine's steady clock. 0 if the rank reads this time from the segment.
  int64_t job_started = 0;
  std::vector<KeptArena> kept = {};  // arenas that the launcher of this machine keeps
};

// The message that a launcher repeatedly sends to its ranks through a separate socket (lifeline.h). It says that the
// launcher is alive, or that an epoch has failed.
struct FromLifeline {
  int64_t epoch = -1;
  std::optional<FailureReport> failure = {};
};

// Returns two connected ends, which exec closes. Throws InternalError if they cannot be made.
std::pair<Descriptor, Descriptor> control_sockets();

// These functions do not block. They return false if the other end is closed or its buffer is full.
bool send(const Descriptor& socket, const FromRank& message, int descriptor = -1);
bool send(const Descriptor& socket, FromLauncher::Kind kind);
bool send_epoch(const Descriptor& socket, const Epoch& epoch, int64_t rank, int segment, int64_t job_started = 0,
                const std::vector<KeptArena>& kept = {});
bool send(const Descriptor& socket, const FromLifeline& message);

// Returns the next message, or nothing if none has arrived; does not block. If a descriptor came with the message,
// `arena` receives it. If the other end is closed, closes the socket. If the bytes come from a launcher and are not a
// message, throws InternalError.
std::optional<FromRank> receive_from_rank(Descriptor* socket, Descriptor* arena = nullptr);
std::optional<FromLauncher> receive_from_launcher(Descriptor* socket);
std::optional<FromLifeline> receive_from_lifeline(Descriptor* socket);

// These functions convert a rank's message to bytes and back, for launchers that forward messages. `from_rank` returns
// nothing if the bytes are not a message.
std::string packed(const FromRank& message);
std::optional<FromRank> from_rank(std::string_view bytes);

}  // namespace copus
