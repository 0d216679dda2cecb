// A pool that reuses pinned host memory, because pinning is slow.
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

  // Keeps a reference to `runtime`.
  explicit PinnedPool(DeviceRuntime& runtime) : runtime_(runtime) {}
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  // Waits for copies under way.
  ~PinnedPool();

  // Returns a buffer of at least `bytes`, with arbitrary content. The pool grows to the largest number of buffers that
  // were in use at once.
  Buffer take(int64_t bytes);
  // Returns a buffer to the pool. take() reuses it after the event, if there is one.
  void give_back(Buffer buffer, std::shared_ptr<const DeviceRuntime::Event> in_use_until);

 private:
  DeviceRuntime& runtime_;
  std::multimap<int64_t, Buffer> free_;  // by size
};

}  // namespace copus
