// Memory of a rank's device: how much its tensors use, and whether an action gets the memory that it needs.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <new>

namespace copus {

struct DeviceMemory {
  int64_t used_bytes;       // in live tensors of this process
  int64_t peak_used_bytes;  // since reset_peak_device_memory
  int64_t reserved_bytes;   // from the device, in live tensors or cached
  int64_t total_bytes;      // 0 on a CPU, which has no such limit
};

// Returns the state of the host's allocator (caching_allocator.h), or of ATen's for a GPU. Does not synchronise.
DeviceMemory device_memory(at::Device device);
void reset_peak_device_memory(at::Device device);
// Returns the allocator's cached memory to the GPU, for other users such as NCCL. Does nothing on a CPU.
void release_cached_memory(at::Device device);

// Calls `take`. Returns false if it threw because host or device memory was lacking, otherwise true. Other exceptions
// propagate.
template <class Take>
bool fits_into_memory(const Take& take) {
  try {
    take();
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
  return true;
}

}  // namespace copus
