// A communicator over any transport: asynchronous operations run in order on threads of the group, blocking ones on the
// thread of the caller, after those.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/comm/task_queue.h"
#include "copus/comm/transport.h"

namespace copus {

class QueuedCommunicator : public Communicator {
 public:
  // `ranks`: world ranks of the members; `member`: this rank's place among them. In a group of one, everything is done
  // at once.
  QueuedCommunicator(std::vector<int64_t> ranks, int64_t member, std::unique_ptr<Transport> transport);

  Work start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) override;
  Work start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                            Reduction reduction) override;
  Work start_all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  Work start_broadcast(void* data, int64_t count, DataType type, int64_t root) override;
  // Done at once where the message fits between the two and none waits before it.
  Work start_send(const void* data, int64_t count, DataType type, int64_t to) override;

  // Without a change of threads.
  void all_reduce(void* data, int64_t count, DataType type, Reduction reduction = Reduction::sum) override;
  void reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  void all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  void broadcast(void* data, int64_t count, DataType type, int64_t root) override;
  void send(const void* data, int64_t count, DataType type, int64_t to) override;
  void receive(void* data, int64_t count, DataType type, int64_t from) override;
  void barrier() override;

 private:
  void check_counts(std::span<const int64_t> counts) const;
  void check_member(int64_t member) const;
  void check_other(int64_t member) const;
  Work start_collective(std::function<void()> collective);

  const std::unique_ptr<Transport> transport_;
  TaskQueue collectives_;
  std::vector<TaskQueue> sends_;  // for each receiver
};

}  // namespace copus
