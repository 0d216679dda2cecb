// Memory of the device that a rank computes on: how much its tensors take, and a test whether an action finds enough.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <new>

namespace copus {

struct DeviceMemory {
  int64_t used_bytes;       // in live tensors of this process
  int64_t peak_used_bytes;  // since reset_peak_device_memory
  int64_t reserved_bytes;   // bytes from the device, live or cached
  int64_t total_bytes;      // bytes of the device; 0: a CPU, whose memory is the host's and has no such bound
};

// Returns the state of the allocator of host tensors (caching_allocator.h), or of ATen's for a GPU. Waits for nothing.
DeviceMemory device_memory(at::Device device);
void reset_peak_device_memory(at::Device device);
// Returns to a GPU the memory that the allocator keeps for later tensors, so that others (NCCL) can have it. Does
// nothing for a CPU.
void release_cached_memory(at::Device device);

// Tells whether `take` gets the memory that it asks for, of host and device. Other exceptions pass through.
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
