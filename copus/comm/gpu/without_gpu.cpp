// Replaces gpu_runtime.cpp in builds without a GPU platform.
#include "copus/base/error.h"
#include "copus/comm/gpu/device_runtime.h"

namespace copus {

// NOLINTNEXTLINE(performance-unnecessary-value-param): builds with a platform store it
std::shared_ptr<DeviceRuntime> make_gpu_runtime(int64_t index, std::function<void*()> /*current_stream*/) {
  throw InternalError(concat("no GPU platform in this build, and device ", index, " is asked for"));
}

const char* gpu_platform() { return ""; }

}  // namespace copus
