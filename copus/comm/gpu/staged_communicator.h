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

class StagedCommunicator final : public WrappedCommunicator {
 public:
  // Refers to all three. `group` must have ended what it is doing before this is destroyed.
  StagedCommunicator(Communicator& group, DeviceRuntime& runtime, PinnedPool& pinned)
      : WrappedCommunicator(group), runtime_(runtime), pinned_(pinned) {}

 private:
  class Staged;
  struct Plan;

  Work do_start(const Operation& operation) override;
  // Operations on host memory stay on the thread of the caller.
  void do_run(const Operation& operation) override;

  bool is_on_device(const void* data, int64_t bytes) const { return bytes > 0 && runtime_.is_device_memory(data); }
  // The bytes of pinned memory in whose place the group works; 0 where all of the operation is in host memory.
  int64_t bytes_to_stage(const Operation& operation) const;
  Plan plan(const Operation& operation, std::byte* pinned) const;
  Work stage(const Operation& operation, int64_t bytes, const std::function<Work(const Operation& on_host)>& start);

  DeviceRuntime& runtime_;
  PinnedPool& pinned_;
  // Kept as long as the group may be using their buffers, whatever becomes of the handles.
  std::vector<std::shared_ptr<Staged>> under_way_;
};

}  // namespace copus
