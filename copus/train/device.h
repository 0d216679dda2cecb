// The device that a run computes on, facts about devices that are known without computing on them, and the process-wide
// settings of ATen that make a run repeat bitwise.
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

// Finds the device "cpu", "cuda" or "cuda:N". Throws UserError for another name, when this libtorch was built without
// CUDA, and when there is no such device.
at::Device find_device(const std::string& name);

// Finds the device of one rank of a job of `num_ranks`: with "cuda" the machine's ranks take its GPUs in turn. Throws
// UserError as above, and for "cuda:N" with several ranks, since all of them would use one GPU.
at::Device find_device(const std::string& name, int64_t local_rank, int64_t num_ranks);

// Makes a GPU the current one of the calling thread: operations that name no device run on it from now on.
void use_device(at::Device device);

// Chooses the way in which the ranks of `world` communicate: over NCCL where each has a GPU of its own, through the
// host where two share a GPU, and unchanged on CPUs. Every rank calls it, on the thread that it computes on. Throws
// UserError where there is no NCCL.
//
// Ranks that share a GPU of a job on several machines are a UserError (check_may_stage), and use NCCL all the same
// where COPUS_NCCL_ON_SHARED_GPUS is 1 in the environment.
std::unique_ptr<World> connect_devices(std::unique_ptr<World> world, at::Device device, double wait_seconds);

void check_may_stage(const DevicePlaces& places);

// Resolves `wanted` on rank 0's device for all ranks, since other devices may resolve it differently. Every rank calls
// it.
Precision agree_on_precision(Precision wanted, at::Device device, World& world);

// Sets deterministic kernels, and the number of threads that one operation may use; 0 means this rank's share of the
// cores, which `local_ranks` share, and at least one. Returns true if there are enough cores for all threads of all
// these ranks.
bool configure_aten(int64_t threads, int64_t local_ranks = 1);

// Number of GPUs that this process sees; 0 in a program for CPUs alone.
int64_t visible_gpus();

// The maker's name of the processor or the GPU.
std::string device_name(at::Device device);

// The runtime that orders communication after the calling thread's streams on a GPU.
std::shared_ptr<DeviceRuntime> gpu_runtime(at::Device gpu);

// Bytes of a GPU's memory that nobody uses.
int64_t free_memory_bytes(at::Device device);

}  // namespace copus
