// What this process can find out about devices without computing on them.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "copus/comm/gpu/device_runtime.h"

namespace copus {

// That this process sees; 0 where this build's libtorch has no CUDA.
int64_t visible_gpus();

// As its maker calls it: the processor, or the GPU.
std::string device_name(at::Device device);

// Of the calling thread's streams on a GPU.
std::shared_ptr<DeviceRuntime> gpu_runtime(at::Device gpu);

// Of a GPU, that nobody uses.
int64_t free_memory_bytes(at::Device device);

}  // namespace copus
