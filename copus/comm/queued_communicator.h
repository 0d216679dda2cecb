// A communicator over any transport. Started operations run in order on threads of the group. Blocking operations run
// on the caller's thread, after all started operations.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/comm/task_queue.h"
#include "copus/comm/transport.h"

namespace copus {

class QueuedCommunicator final : public Communicator {
 public:
  // `ranks`: world ranks of the members; `member`: this rank's position among them. `queues`: all queues of this rank,
  // if the rank continues after other ranks have failed; otherwise null.
  QueuedCommunicator(std::vector<int64_t> ranks, int64_t member, std::unique_ptr<Transport> transport,
                     std::shared_ptr<OpenQueues> queues = nullptr);

 private:
  // A send completes immediately if its message fits into the buffer between the two members and no earlier send waits.
  Work do_start(const Operation& operation) override;
  void do_run(const Operation& operation) override;
  void perform(const Operation& operation);

  const std::unique_ptr<Transport> transport_;
  const std::shared_ptr<OpenQueues> queues_;
  TaskQueue collectives_;
  std::deque<TaskQueue> sends_;  // by receiver
};

}  // namespace copus
