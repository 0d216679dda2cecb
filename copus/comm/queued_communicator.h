// A communicator over any transport. Operations that are started run in order on threads of the group; blocking ones
// run on the thread of the caller, after those.
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
  // `ranks`: world ranks of the members; `member`: this rank's place among them. `queues`: those of this rank, where it
  // goes on after the failure of another one.
  QueuedCommunicator(std::vector<int64_t> ranks, int64_t member, std::unique_ptr<Transport> transport,
                     std::shared_ptr<OpenQueues> queues = nullptr);

 private:
  // A send is done at once where the message fits between the two members and none waits before it.
  Work do_start(const Operation& operation) override;
  void do_run(const Operation& operation) override;
  void perform(const Operation& operation);

  const std::unique_ptr<Transport> transport_;
  const std::shared_ptr<OpenQueues> queues_;
  TaskQueue collectives_;
  std::deque<TaskQueue> sends_;  // for each receiver
};

}  // namespace copus
