#include "copus/train/device_facts.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <sstream>

#include "copus/base/durable_file.h"
#include "copus/model/device_stream.h"

namespace copus {

std::shared_ptr<DeviceRuntime> gpu_runtime(at::Device gpu) {
  return make_gpu_runtime(gpu.index(), [gpu] { return current_stream_handle(gpu); });
}

int64_t visible_gpus() {
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) return 0;
  return c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
}

std::string device_name(at::Device device) {
  if (!device.is_cpu()) return gpu_runtime(device)->name();
  std::istringstream lines(read_text_file("/proc/cpuinfo"));
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

int64_t free_memory_bytes(at::Device device) { return gpu_runtime(device)->memory().free_bytes; }

}  // namespace copus
