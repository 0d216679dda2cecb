// Implements Health over TCP, and the meeting of the ranks. Each rank is connected only to its neighbours in the tree
// of ranks (tree_member.h), so even among thousands of ranks, none has more than about a dozen connections. If ranks
// are started machine by machine, each machine has its own log, so one rank on each machine reports a failure to the
// user.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "copus/comm/health/heartbeat_health.h"
#include "copus/comm/health/watchdog.h"
#include "copus/comm/messages/tcp_socket.h"
#include "copus/comm/messages/text_link.h"

namespace copus {

struct TcpRank {
  int64_t rank = 0;
  int64_t size = 1;
  // The ranks of this machine. One of them reports failures to the user here.
  int64_t first_of_machine = 0;
  int64_t num_of_machine = 1;
  double wait_seconds = 0;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();  // when the start began
  // Whether this rank has a watchdog, which (a) reports failures to the user and (b) ends the process if the job has
  // failed and the rank does not notice. Not set for ranks that are threads.
  bool watch = false;
  // With `watch`: whether the watchdog does (a) and (b), or a launcher does both.
  AfterFailure after_failure = AfterFailure::end_process;
  std::optional<std::chrono::steady_clock::time_point> clock_start =
      {};  // zero of the rank's clock; empty: when all ranks have met
};

class TcpHealth final : public HeartbeatHealth {
 public:
  // `door`: the socket on which this rank listens for its child ranks; empty if this rank has no child ranks. The
  // constructor begins to admit child ranks, so the socket's address may be published afterwards.
  TcpHealth(const TcpRank& self, std::optional<TcpDoor> door);
  TcpHealth(const TcpHealth&) = delete;
  TcpHealth& operator=(const TcpHealth&) = delete;
  ~TcpHealth() override;

  // For all ranks except 0: sets the connection to the parent rank. `token`: the job's secret.
  void join_parent(TcpSocket to_parent, const std::string& token);
  // Ends the meeting because the parent rank could not be found in time: tells the child ranks, and throws RankFailure.
  [[noreturn]] void miss_parent();

  // Sends this rank's address to all ranks, and returns the addresses of all. Throws RankFailure if addresses are
  // missing. If `failed_meanwhile` is given, calls it regularly and reports the failure that it returns.
  std::vector<TcpAddress> meet(const TcpAddress& own,
                               const std::function<std::optional<FailureReport>()>& failed_meanwhile = {});

  // Called instead of report() by a rank that ends with an error of its own. It prints the error itself.
  void report_own_error();

  // The orderly end of a job: returns once all ranks have reached it, or the job has failed.
  void leave();

 private:
  void wake() override;

  void watch();
  // Called with mutex() held.
  void admit_guests(Clock::time_point now);
  void listen_to(int64_t neighbour, TextLink& link, Clock::time_point now);
  void send_texts();
  void see_to_decision();
  bool tells_user(const TreeMember::Decision& decision) const;
  std::vector<pollfd> descriptors() const;
  void see_to_the_end(std::unique_lock<std::mutex>& lock);

  const TcpRank self_;
  TcpSocket bell_;  // an event (eventfd) that wakes the thread

  // Protected by mutex().
  std::optional<TcpDoor> door_;
  std::map<int64_t, TextLink> links_;  // by neighbour
  bool stopping_ = false;

  std::thread watchdog_;
};

}  // namespace copus
