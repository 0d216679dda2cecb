// Ranks on several machines that connect over TCP and need no other program for it. It is for launchers that bring no
// MPI, such as torchrun.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "copus/comm/messages/tcp_health.h"
#include "copus/comm/world.h"

namespace copus {

// How the others find rank 0. It publishes a text with its address and the job's secret, without which nobody is let
// in. From rank 0 each gets the addresses of all.
struct TcpMeeting {
  std::string host;                                       // rank 0: its machine's address, as the others reach it
  std::function<void(const std::string& place)> publish;  // rank 0
  std::function<std::string()> find;                      // others: waits for it
};

// Joins the job, and returns when all ranks have. Throws UserError when rank 0 cannot be reached, and RankFailure when
// ranks do not come in time. The end of the world waits for the other ranks, unless the job has failed or an exception
// is on its way.
std::unique_ptr<World> join_tcp(const TcpRank& self, const TcpMeeting& meeting);

}  // namespace copus
