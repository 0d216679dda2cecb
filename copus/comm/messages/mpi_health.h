// Health over MPI. Every rank's watchdog thread sends heartbeats with the rank's place to all others, over a
// communicator that is for nothing else, and listens to theirs.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "copus/comm/health/heartbeat_health.h"

namespace copus {

class MpiHealth final : public HeartbeatHealth {
 public:
  // All ranks of `parent` make theirs, within a second or so of one another.
  explicit MpiHealth(MPI_Comm parent);
  MpiHealth(const MpiHealth&) = delete;
  MpiHealth& operator=(const MpiHealth&) = delete;
  ~MpiHealth() override;

  // Returns once the other ranks have been told, or soon after.
  void report(const FailureReport& report) override;

  // Ends the watch and the heartbeats. For the normal end of a job, when all ranks are there.
  void stop();
  // After a failure, the rank that reported it takes down what is left of the job. On other ranks this returns.
  void end_job();

 private:
  struct Message;
  struct Sent;

  void watch();
  void listen();
  void take(const Message& message);
  void send_to_all(const Message& message);
  void reap_sent();
  void publish(const FailureReport& report);
  void tell_others(const FailureReport& report);

  MPI_Comm comm_ = MPI_COMM_NULL;
  std::optional<FailureReport> to_report_;  // until the others have been told; this and what follows with mutex()
  bool reported_here_ = false;
  bool stopping_ = false;

  // These are the watchdog's.
  std::optional<Clock::time_point> report_at_;  // set by the first claim, this rank's or another's
  std::unique_ptr<Message> incoming_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  std::list<Sent> sent_;
  std::thread watchdog_;
};

}  // namespace copus
