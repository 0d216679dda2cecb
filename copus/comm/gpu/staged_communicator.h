// One group of ranks whose device memory travels through pinned host memory. Starting an operation waits until the
// device has come so far, and copies its input down; waiting for it copies its result up, behind which the stream goes
// on. In between, the group that connects the processes does what it does with any host memory: order of summation,
// order of operations, deadlines.
//
// That start waits costs the device its lead over the host. It is for ranks that share a device, which then has other
// ranks' work to do.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/gpu/pinned_pool.h"

namespace copus {

class StagedCommunicator : public Communicator {
 public:
  // Refers to all three. `group` must have ended what it is doing before this is destroyed.
  StagedCommunicator(Communicator& group, DeviceRuntime& runtime, PinnedPool& pinned);

  Work start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) override;
  Work start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                            Reduction reduction) override;
  Work start_all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  Work start_broadcast(void* data, int64_t count, DataType type, int64_t root) override;
  Work start_send(const void* data, int64_t count, DataType type, int64_t to) override;
  void receive(void* data, int64_t count, DataType type, int64_t from) override;
  void barrier() override;
  void exchange(std::span<const Message> outgoing, std::span<const Message> incoming) override;

  // Of host memory as the group does it: on the caller's thread.
  void all_reduce(void* data, int64_t count, DataType type, Reduction reduction = Reduction::sum) override;
  void reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  void all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  void broadcast(void* data, int64_t count, DataType type, int64_t root) override;
  void send(const void* data, int64_t count, DataType type, int64_t to) override;

 private:
  class Staged;

  // What lies at `offset` of a pinned buffer.
  struct Stretch {
    void* device = nullptr;
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  // On pinned memory in place of the device's.
  using HostOperation = std::function<Work(std::byte* pinned)>;

  bool on_device(const void* data, int64_t bytes) const { return bytes > 0 && runtime_.is_device_memory(data); }
  // Where this rank's part lies among parts of so many elements, in bytes.
  Stretch own_part(const void* device, std::span<const int64_t> counts, DataType type) const;
  Work start(int64_t bytes, const std::vector<Stretch>& down, std::vector<Stretch> up, const HostOperation& operate);

  Work reduce_staged(void* data, int64_t count, DataType type, const HostOperation& operate);
  Work scatter_staged(void* input, void* output, std::span<const int64_t> counts, DataType type,
                      const HostOperation& operate);
  Work gather_staged(const void* input, void* output, std::span<const int64_t> counts, DataType type,
                     const HostOperation& operate);
  Work broadcast_staged(void* data, int64_t count, DataType type, int64_t root, const HostOperation& operate);
  Work send_staged(const void* data, int64_t count, DataType type, const HostOperation& operate);

  Communicator& group_;
  DeviceRuntime& runtime_;
  PinnedPool& pinned_;
  // Kept as long as the group may be using their buffers, whatever becomes of the handles.
  std::vector<std::shared_ptr<Staged>> under_way_;
};

}  // namespace copus
