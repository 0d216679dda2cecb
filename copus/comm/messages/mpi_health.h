// Implements Health over MPI: the texts of the tree of ranks travel as messages over a separate communicator.
#pragma once

#include <mpi.h>

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
  // All ranks of `parent` must construct this object within about a second of each other.
  MpiHealth(MPI_Comm parent, double wait_seconds);
  MpiHealth(const MpiHealth&) = delete;
  MpiHealth& operator=(const MpiHealth&) = delete;
  ~MpiHealth() override;

  // Ends monitoring and heartbeats. For the normal end of a job, with all ranks present.
  void stop();
  // Ends the job after a failure, on the rank that reported the failure to the user. If that rank is gone too, a rank
  // that noticed the failure reports it later and ends the job. On all other ranks this function returns.
  void end_job();

 private:
  struct Message;
  struct Sent;

  void wake() override { changed().notify_all(); }

  void watch();
  void listen();
  void send(const std::vector<TreeMember::Text>& texts);
  void reap_sent();
  void tell(const TreeMember::Decision& decision);

  MPI_Comm comm_ = MPI_COMM_NULL;
  bool told_here_ = false;     // protected by mutex(), like the members below
  bool decided_here_ = false;  // for this rank and its subtree
  bool stopping_ = false;

  // Used by the watchdog thread.
  std::unique_ptr<Message> incoming_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  std::list<Sent> sent_;
  std::thread watchdog_;
};

}  // namespace copus
