// Ranks on several machines that connect over TCP and need no other program for it. It is for launchers that bring no
// MPI, such as torchrun.
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

// How ranks find those above them. Rank 0 publishes a text with its address and the job's secret, without which nobody
// is let in, others their address. When they have met, all know the addresses of all.
struct TcpMeeting {
  std::string host;  // this rank's machine's address, as the others reach it
  std::function<void(int64_t rank, const std::string& place)> publish;
  // Waits for it; empty where it does not come in time.
  std::function<std::optional<std::string>(int64_t rank)> find;

  // These may be empty. They are of ranks whose launcher goes on without those that fail.
  // What the launcher has found to have failed. It ends the meeting.
  std::function<std::optional<FailureReport>()> failed_meanwhile = {};
  // So long that may take it, where others cannot reach who has failed.
  double longest_finding_seconds = 0;
  // Called when this rank leaves the world, before it waits for the others to do so.
  std::function<void(const TcpParting&)> parts = {};
};

// Joins the job, and returns when all ranks have. Throws UserError when the rank above cannot be reached, and
// RankFailure when ranks do not come in time. The end of the world waits for the other ranks, unless the job has failed
// or an exception is on its way.
std::unique_ptr<World> join_tcp(const TcpRank& self, const TcpMeeting& meeting);

}  // namespace copus
