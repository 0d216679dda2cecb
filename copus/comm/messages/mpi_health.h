// Health over MPI: the texts of the tree of ranks travel as messages over a communicator that is for nothing else.
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
  // All ranks of `parent` make theirs, within a second or so of one another.
  MpiHealth(MPI_Comm parent, double wait_seconds);
  MpiHealth(const MpiHealth&) = delete;
  MpiHealth& operator=(const MpiHealth&) = delete;
  ~MpiHealth() override;

  // Ends the watch and the heartbeats. For the normal end of a job, when all ranks are there.
  void stop();
  // After a failure, the rank that told the user takes down what is left of the job. Should it be gone too, any that
  // has decided by itself tells the user later, and does so. On other ranks this returns.
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
  bool told_here_ = false;     // this and what follows with mutex()
  bool decided_here_ = false;  // for this rank and those below it
  bool stopping_ = false;

  // These are the watchdog's.
  std::unique_ptr<Message> incoming_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  std::list<Sent> sent_;
  std::thread watchdog_;
};

}  // namespace copus
