// Pinned host memory, which is used again and again since pinning takes long.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

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

  // A buffer of at least so many bytes, with any content. There are as many buffers as were out at once.
  Buffer take(int64_t bytes);
  // take() gives the buffer out again when the event, if there is one, has come.
  void give_back(Buffer buffer, std::shared_ptr<const DeviceRuntime::Event> in_use_until);

 private:
  DeviceRuntime& runtime_;
  std::multimap<int64_t, Buffer> free_;  // by size
};

}  // namespace copus
