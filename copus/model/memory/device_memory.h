// Memory of the device on which a rank computes: how much its tensors use, and whether an action finds enough.
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
  int64_t total_bytes;      // 0: a CPU, whose memory is the host's and has no such bound
};

// Returns the state of the host's allocator (caching_allocator.h), or of ATen's for a GPU. Does not synchronise.
DeviceMemory device_memory(at::Device device);
void reset_peak_device_memory(at::Device device);
// Returns the allocator's cached memory to the GPU, so that others (NCCL) can have it. Does nothing on a CPU.
void release_cached_memory(at::Device device);

// Returns whether `take` gets the memory that it requests, on host and device. Other exceptions pass through.
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
