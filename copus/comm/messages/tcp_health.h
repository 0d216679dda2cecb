// Health over TCP, and how the ranks meet. Each is connected to its neighbours in the tree of ranks (tree_member.h), so
// that of thousands of ranks none has more than a dozen connections or so. Where ranks are started machine by machine,
// each machine has a log of its own, so one rank of each machine tells the user of a failure.
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
  // The ranks of this machine, on which their failures are told.
  int64_t first_of_machine = 0;
  int64_t num_of_machine = 1;
  double wait_seconds = 0;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();  // from when the start is counted
  // Whether to tell the user of failures, and to end this process when the job has failed and the rank does not notice.
  // Ranks that are threads must not.
  bool watch = false;
  // With `watch`: where a launcher tells the user, and ends ranks that do not notice, this one does neither.
  AfterFailure after_failure = AfterFailure::end_process;
  std::optional<std::chrono::steady_clock::time_point> clock_start =
      {};  // of the rank's clock; empty: when all have met
};

class TcpHealth final : public HeartbeatHealth {
 public:
  // `door`: to which the ranks below come, if there are any. It lets them in from now on, and may be told to them.
  TcpHealth(const TcpRank& self, std::optional<TcpDoor> door);
  TcpHealth(const TcpHealth&) = delete;
  TcpHealth& operator=(const TcpHealth&) = delete;
  ~TcpHealth() override;

  // Of all ranks but 0: a connection to the rank above. `token`: the job's.
  void join_parent(TcpSocket to_parent, const std::string& token);
  // The rank above could not be found in time. Tells the ranks below, and throws RankFailure.
  [[noreturn]] void miss_parent();

  // Gives this rank's address to all, and returns those of all ranks. Throws RankFailure when they do not come, and
  // reports what `failed_meanwhile` gives (if it is there), which is asked now and then.
  std::vector<TcpAddress> meet(const TcpAddress& own,
                               const std::function<std::optional<FailureReport>()>& failed_meanwhile = {});

  // What a rank that is ended by an error of its own does in place of report(). It tells the user itself.
  void report_own_error();

  // The end of a job in good order: returns once all ranks have come to it, or the job has failed.
  void leave();

 private:
  void wake() override;

  void watch();
  // These with mutex() held.
  void admit_guests(Clock::time_point now);
  void listen_to(int64_t neighbour, TextLink& link, Clock::time_point now);
  void send_texts();
  void see_to_decision();
  bool tells_user(const TreeMember::Decision& decision) const;
  std::vector<pollfd> descriptors() const;
  void see_to_the_end(std::unique_lock<std::mutex>& lock);

  const TcpRank self_;
  TcpSocket bell_;  // an event (eventfd) that wakes the thread

  // These with mutex() held.
  std::optional<TcpDoor> door_;
  std::map<int64_t, TextLink> links_;  // by neighbour
  bool stopping_ = false;

  std::thread watchdog_;
};

}  // namespace copus
