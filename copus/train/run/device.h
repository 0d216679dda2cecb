// Finds the device of a run and its properties, and makes the process-wide ATen settings for bitwise repeatable
// results.
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

// Returns the device "cpu", "cuda" or "cuda:N". Throws UserError for other names, for CUDA devices in builds without
// CUDA, and for devices that do not exist.
at::Device find_device(const std::string& name);

// Returns the device of one of `num_ranks` ranks. With "cuda" the machine's ranks take its GPUs in turn. Throws
// UserError as above, and for "cuda:N" with several ranks, which would all share one GPU.
at::Device find_device(const std::string& name, int64_t local_rank, int64_t num_ranks);

// Makes a GPU the current device of the calling thread, for operations that name no device.
void use_device(at::Device device);

// Returns a world that also connects the ranks' devices. Throws UserError if ranks share a GPU in a job on several
// machines (check_may_stage). With COPUS_NCCL_ON_SHARED_GPUS=1 in the environment, ranks that share a GPU use NCCL.
std::unique_ptr<World> connect_devices(std::unique_ptr<World> world, at::Device device, double wait_seconds);

void check_may_stage(const DevicePlaces& places);

// Resolves `wanted` on rank 0's device for all ranks, whose devices may differ. Every rank calls it.
Precision agree_on_precision(Precision wanted, at::Device device, World& world);

// Selects deterministic kernels and sets the number of threads per operation. With threads = 0 each of `local_ranks`
// ranks uses an equal part of the machine's cores, at least one. Returns whether every thread of these ranks has a
// core.
bool configure_aten(int64_t threads, int64_t local_ranks = 1);

// Returns the number of GPUs visible to this process; 0 in CPU-only builds.
int64_t visible_gpus();

// Returns the vendor's name of the processor or GPU.
std::string device_name(at::Device device);

// Returns the runtime that orders communication after the calling thread's streams on a GPU.
std::shared_ptr<DeviceRuntime> gpu_runtime(at::Device gpu);

// Returns the unused bytes of a GPU's memory.
int64_t free_memory_bytes(at::Device device);

}  // namespace copus
