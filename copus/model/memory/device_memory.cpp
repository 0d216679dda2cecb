#include "copus/model/memory/device_memory.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "copus/model/memory/caching_allocator.h"

namespace copus {

namespace {

// Returns the allocator of a GPU, which the first call initialises.
c10::DeviceAllocator& allocator_of(at::Device device) {
  at::globalContext().lazyInitDevice(device.type());
  return *c10::getDeviceAllocator(device.type());
}

}  // namespace

DeviceMemory device_memory(at::Device device) {
  if (device.is_cpu()) {
    const HostMemory host = host_memory();
    return {.used_bytes = host.used_bytes,
            .peak_used_bytes = host.peak_used_bytes,
            .reserved_bytes = host.reserved_bytes,
            .total_bytes = 0};
  }
  c10::DeviceAllocator& allocator = allocator_of(device);
  const auto stats = allocator.getDeviceStats(device.index());
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {.used_bytes = stats.allocated_bytes[all].current,
          .peak_used_bytes = stats.allocated_bytes[all].peak,
          .reserved_bytes = stats.reserved_bytes[all].current,
          .total_bytes = static_cast<int64_t>(allocator.getMemoryInfo(device.index()).second)};
}

void release_cached_memory(at::Device device) {
  if (!device.is_cpu()) allocator_of(device).emptyCache();
}

void reset_peak_device_memory(at::Device device) {
  if (device.is_cpu()) return reset_peak_host_memory();
  allocator_of(device).resetPeakStats(device.index());
}

}  // namespace copus
