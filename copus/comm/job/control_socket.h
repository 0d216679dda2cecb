// What a launcher and its ranks tell each other where ranks come and go, each through a socket that the rank inherits.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "copus/comm/descriptor.h"
#include "copus/comm/job/epoch.h"

namespace copus {

enum class FromRank : int64_t {
  ready = 1,
  wants_to_leave,
  garbled,  // what came is none of these; never sent
};

struct FromLauncher {
  enum class Kind : int64_t {
    regroup = 1,  // leave this epoch at the end of a step
    go,           // there is no next epoch for you
    epoch,        // the next one
    stop,         // end the job in good order
  };
  Kind kind = Kind::regroup;
  // Of the next epoch: its value, which rank the receiver is in it, and its segment.
  Epoch epoch;
  int64_t rank = 0;
  Descriptor segment;
};

// Two ends, which exec closes. Throws InternalError where there are none to be had.
std::pair<Descriptor, Descriptor> control_sockets();

// These do not wait, and give false where the other end is closed or takes no more.
bool send(const Descriptor& socket, FromRank message);
bool send(const Descriptor& socket, FromLauncher::Kind kind);
bool send_epoch(const Descriptor& socket, const Epoch& epoch, int64_t rank, int segment);

// The next message. Does not wait: where there is none, it is empty. Closes the socket where the other end is closed.
// Throws InternalError where what came from the launcher is no message.
std::optional<FromRank> receive_from_rank(Descriptor* socket);
std::optional<FromLauncher> receive_from_launcher(Descriptor* socket);

}  // namespace copus
