// The device that a run computes on, facts about devices that need no computation, and the process-wide ATen settings
// that make a run repeat bitwise.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/gpu/device_world.h"
#include "copus/comm/world.h"
#include "copus/config/run_config.h"

namespace copus {

// Finds the device "cpu", "cuda" or "cuda:N". Throws UserError for any other name, if this libtorch was built without
// CUDA, and if the device does not exist.
at::Device find_device(const std::string& name);

// Finds the device of one rank of a job of `num_ranks`: with "cuda" the machine's ranks take its GPUs in turn. Throws
// UserError as above, and for "cuda:N" with several ranks, since all of them would share one GPU.
at::Device find_device(const std::string& name, int64_t local_rank, int64_t num_ranks);

// Makes a GPU the current device of the calling thread: operations that name no device then run on it.
void use_device(at::Device device);

// Throws UserError if ranks of a job on several machines share a GPU (check_may_stage). With
// COPUS_NCCL_ON_SHARED_GPUS=1 in the environment, ranks that share a GPU always use NCCL.
std::unique_ptr<World> connect_devices(std::unique_ptr<World> world, at::Device device, double wait_seconds);

void check_may_stage(const DevicePlaces& places);

// Resolves `wanted` on rank 0's device for all ranks, since their devices may differ. Every rank calls it.
Precision agree_on_precision(Precision wanted, at::Device device, World& world);

// Selects deterministic kernels and sets the number of threads of one operation. With 0 threads, the rank uses an equal
// part of the machine's cores, at least one; `local_ranks` ranks share the cores. Returns whether there are enough
// cores for all threads of all these ranks.
bool configure_aten(int64_t threads, int64_t local_ranks = 1);

// Number of GPUs that this process sees; 0 in a CPU-only build.
int64_t visible_gpus();

// The vendor's name of the processor or GPU.
std::string device_name(at::Device device);

// The runtime that orders communication after the calling thread's streams on a GPU.
std::shared_ptr<DeviceRuntime> gpu_runtime(at::Device gpu);

// Unused bytes of a GPU's memory.
int64_t free_memory_bytes(at::Device device);

}  // namespace copus
