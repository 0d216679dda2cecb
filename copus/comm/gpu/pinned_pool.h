// Pinned host memory that is used again and again, since pinning takes long.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "copus/comm/gpu/device_runtime.h"

namespace copus {

// Used by one thread.
class PinnedPool {
 public:
  class Buffer {
   public:
    std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }

   private:
    friend class PinnedPool;
    std::shared_ptr<void> memory_;
    int64_t bytes_ = 0;
    std::shared_ptr<const DeviceRuntime::Event> in_use_until_;
  };

  // Refers to `runtime`.
  explicit PinnedPool(DeviceRuntime& runtime) : runtime_(runtime) {}
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  // Waits for the copies that are under way.
  ~PinnedPool();

  // At least so many bytes, which may be anything. As many buffers exist as were out at once, and each grows.
  Buffer take(int64_t bytes);
  // The buffer is taken again when the event, if any, has come.
  void give_back(Buffer buffer, std::shared_ptr<const DeviceRuntime::Event> in_use_until);

 private:
  DeviceRuntime& runtime_;
  std::vector<Buffer> free_;
};

}  // namespace copus
