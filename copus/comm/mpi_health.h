// Health without memory in common: every rank's watchdog thread sends heartbeats with the rank's place to all others,
// over an MPI communicator of its own, and listens to theirs.
#pragma once

#include <mpi.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "copus/comm/health.h"

namespace copus {

class MpiHealth final : public Health {
 public:
  // Collective over `parent`. All ranks must begin within a second or so of one another.
  explicit MpiHealth(MPI_Comm parent);
  MpiHealth(const MpiHealth&) = delete;
  MpiHealth& operator=(const MpiHealth&) = delete;
  ~MpiHealth() override;

  void set_place(std::string_view place) override;
  void set_expected_step_seconds(double seconds) override;
  void begin_wait() override;
  void end_wait() override;
  // Returns once the other ranks have been told, or soon after.
  void report(const FailureReport& report) override;
  std::optional<FailureReport> failure() const override;

  std::string place_of(int64_t rank) const;

  // Ends the watch: no heartbeats from here on. For the normal end of a job, when all ranks are there.
  void stop();
  // After a failure: takes down what is left of the job, if it was this rank that reported it, and returns otherwise.
  void end_job();

 private:
  using Clock = std::chrono::steady_clock;
  struct Message;
  struct Sent;
  struct Rank {
    Clock::time_point heard;
    int64_t pid;
    std::string place;
  };

  void watch();
  void listen();
  void take(const Message& message);
  void send_to_all(const Message& message);
  void reap_sent();
  std::optional<FailureReport> find_failure(Clock::time_point now);
  void publish(const FailureReport& report);
  void tell_others(const FailureReport& report);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;

  mutable std::mutex mutex_;  // of all that follows up to the watchdog's own
  std::condition_variable changed_;
  Clock::time_point progress_;
  double expected_step_seconds_ = 0;
  int64_t waiting_ = 0;
  std::vector<Rank> ranks_;
  std::optional<FailureReport> to_report_;  // until the others have been told
  std::optional<FailureReport> failure_;
  bool reported_here_ = false;
  bool stopping_ = false;

  // The watchdog's own.
  std::optional<Clock::time_point> report_at_;  // set by the first claim, this rank's or another's
  std::unique_ptr<Message> incoming_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  std::list<Sent> sent_;
  std::thread watchdog_;
};

}  // namespace copus
