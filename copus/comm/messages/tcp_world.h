// Connects ranks on several machines over TCP without the help of another program, for launchers without MPI such as
// torchrun.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "copus/comm/messages/tcp_health.h"
#include "copus/comm/world.h"

namespace copus {

// What a rank knew when it left.
struct TcpParting {
  std::optional<FailureReport> failure;
  double expected_step_seconds = 0;
};

// How ranks find the ranks above them in the tree. Rank 0 publishes a text with its address and the job's secret, which
// every connection must present. Other ranks publish their address. After meeting, every rank knows the addresses of
// all ranks.
struct TcpMeeting {
  std::string host;  // the address of this rank's machine for other ranks
  std::function<void(int64_t rank, const std::string& place)> publish;
  // Waits for a rank's text; empty if it does not come in time.
  std::function<std::optional<std::string>(int64_t rank)> find;

  // The following members are for ranks whose launcher continues without failed ranks. They may be empty.
  //
  // Returns a failure that the launcher has found. Such a failure ends the meeting.
  std::function<std::optional<FailureReport>()> failed_meanwhile = {};
  // The longest time until the launcher finds it, for ranks that cannot reach the failed one.
  double longest_finding_seconds = 0;
  // Called when this rank leaves the world, before it waits for the others to leave.
  std::function<void(const TcpParting&)> parts = {};
};

// Joins the job, and returns when all ranks have joined. Throws UserError if the rank above cannot be reached, and
// RankFailure if ranks do not come in time. The world's destructor waits for the other ranks, unless the job has failed
// or an exception is in flight.
std::unique_ptr<World> join_tcp(const TcpRank& self, const TcpMeeting& meeting);

}  // namespace copus
