// Health over TCP, and how the ranks meet. Each keeps one connection to rank 0, so that thousands of ranks need no more
// than that many. Rank 0 learns of every failure, decides which was the first, and tells all. When rank 0 itself fails,
// each of the others sees it alone. Where ranks are started machine by machine, each machine has a log of its own, so
// one rank of each machine tells the user.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "copus/comm/health/heartbeat_health.h"
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
  // Whether to tell the user of failures, and to end this process when the job has failed and the rank does not notice.
  // Ranks that are threads must not.
  bool watch = false;
};

class TcpHealth final : public HeartbeatHealth {
 public:
  // Of rank 0, to whose door the others come.
  TcpHealth(const TcpRank& self, TcpDoor door);
  // Of any other rank, which is connected to rank 0.
  TcpHealth(const TcpRank& self, TcpSocket to_first, const std::string& token);
  TcpHealth(const TcpHealth&) = delete;
  TcpHealth& operator=(const TcpHealth&) = delete;
  ~TcpHealth() override;

  // Gives this rank's address to all, and returns those of all ranks. Throws RankFailure when they do not come.
  std::vector<TcpAddress> meet(const TcpAddress& own);

  // Returns once rank 0 has decided.
  void report(const FailureReport& report) override;
  // What a rank that is ended by an error of its own does in place of report(). It tells the user itself.
  void report_own_error();

  // The end of a job in good order: returns once all ranks have come to it, or the job has failed.
  void leave();

 private:
  struct Report {
    FailureReport failure;
    bool told = false;  // to the user, by the rank that failed
  };

  void submit(const Report& report);
  void watch();
  // These with mutex() held.
  void admit_guests();
  void listen_to(int64_t other, Clock::time_point now);
  void take(int64_t sender, const TextLink::Text& text, Clock::time_point now);
  void see_to_reports(Clock::time_point now);
  void hand_on(char kind, const std::string& content);
  void begin_if_all_came(Clock::time_point now);
  void set_met();
  void end_if_all_left(Clock::time_point now);
  void beat(Clock::time_point now);
  void send_to_all(char kind, const std::string& content);
  void decide(Report report);
  bool tells_user(const Report& report) const;

  void see_to_the_end(std::unique_lock<std::mutex>& lock);

  bool is_first() const { return rank() == 0; }

  const TcpRank self_;
  std::optional<TcpDoor> door_;                   // of rank 0
  std::vector<std::unique_ptr<TextLink>> links_;  // of rank 0: to each that has come; of others: to rank 0 alone

  // These with mutex() held.
  std::vector<TcpAddress> addresses_;  // port 0: not yet known
  bool met_ = false;
  std::optional<Report> to_report_;
  std::optional<Clock::time_point> handed_on_;  // to rank 0
  std::optional<Clock::time_point> first_left_;
  std::vector<bool> left_;
  bool ended_ = false;
  bool stopping_ = false;

  const Clock::time_point started_ = Clock::now();
  Clock::time_point last_beat_{};
  std::thread watchdog_;
};

}  // namespace copus
