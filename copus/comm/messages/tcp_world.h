// Connects ranks on several machines over TCP, without MPI, for launchers such as torchrun.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "copus/comm/messages/tcp_health.h"
#include "copus/comm/world.h"

namespace copus {

// What a rank knew about the job when it left.
struct TcpParting {
  std::optional<FailureReport> failure;
  double expected_step_seconds = 0;
};

// How ranks find their parents in the tree of ranks. Rank 0 publishes a text with its address and the job's secret,
// which every connection must present. Other ranks publish only their addresses. After the meeting, every rank knows
// the addresses of all ranks.
struct TcpMeeting {
  std::string host;  // the address of this rank's machine for other ranks
  std::function<void(int64_t rank, const std::string& place)> publish;
  // Waits for a rank's text; empty if it does not come in time.
  std::function<std::optional<std::string>(int64_t rank)> find;

  // The next members may be empty. They are needed only if the launcher continues a job without its failed ranks.
  //
  // failed_meanwhile: returns a failure that the launcher has reported, which ends the meeting.
  std::function<std::optional<FailureReport>()> failed_meanwhile = {};
  // How long a rank that cannot reach another one waits for the launcher to report that rank's failure.
  double longest_finding_seconds = 0;
  // Called when this rank leaves the world, before it waits for the others to leave.
  std::function<void(const TcpParting&)> parts = {};
};

// Joins the job, and returns when all ranks have joined. Throws UserError if the parent rank cannot be reached, and
// RankFailure if ranks do not come in time. The world's destructor waits for the other ranks, unless the job has failed
// or an exception is in flight.
std::unique_ptr<World> join_tcp(const TcpRank& self, const TcpMeeting& meeting);

}  // namespace copus
