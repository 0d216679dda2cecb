// Memory of the device that a rank computes on: how much its tensors take, and what happens when there is no more.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <new>

namespace copus {

struct DeviceMemory {
  int64_t used_bytes;       // in live tensors of this process
  int64_t peak_used_bytes;  // since reset_peak_device_memory
  int64_t reserved_bytes;   // from the device, live or cached
  int64_t total_bytes;      // of the device; 0: that of the host, which has no such bound
};

// Of the allocator of host tensors (caching_allocator.h), or of ATen's for a GPU. Waits for nothing.
DeviceMemory device_memory(at::Device device);
void reset_peak_device_memory(at::Device device);

// Whether `take` gets all memory that it asks for, of host and device. What else it throws goes on.
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
