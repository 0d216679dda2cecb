// The device that a run computes on, what can be found out about devices without computing on them, and the
// process-wide settings of ATen that make a run repeat bitwise.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/world.h"
#include "copus/config/run_config.h"

namespace copus {

// "cpu", "cuda" or "cuda:N". Throws UserError for another name, when this libtorch was built without CUDA, and when
// there is no such device.
at::Device find_device(const std::string& name);

// Of one rank of a job of `num_ranks`: with "cuda" the machine's ranks take its GPUs in turn. Throws UserError as
// above, and for "cuda:N" with several ranks, for all of which it would be one GPU.
at::Device find_device(const std::string& name, int64_t local_rank, int64_t num_ranks);

// What the calling thread does on a GPU without naming one is on this one from now on.
void use_device(at::Device device);

// How the ranks of `world` communicate where each computes on such a device: over NCCL, or through the host where two
// share a GPU; on CPUs as they are. Every rank calls it, on the thread that it computes on. Throws UserError where
// there is no NCCL.
std::unique_ptr<World> connect_devices(std::unique_ptr<World> world, at::Device device, double wait_seconds);

// What `wanted` means on rank 0's device, since others may measure otherwise. Every rank calls it.
Precision agree_on_precision(Precision wanted, at::Device device, World& world);

// Deterministic kernels, and the number of threads that one operation may use; 0: this rank's share of the cores, which
// `local_ranks` share, and at least one. Returns whether the cores suffice for all threads of all these ranks.
bool configure_aten(int64_t threads, int64_t local_ranks = 1);

// That this process sees; 0 where this build's libtorch has no CUDA.
int64_t visible_gpus();

// As its maker calls it: the processor, or the GPU.
std::string device_name(at::Device device);

// Of the calling thread's streams on a GPU.
std::shared_ptr<DeviceRuntime> gpu_runtime(at::Device gpu);

// Of a GPU, that nobody uses.
int64_t free_memory_bytes(at::Device device);

}  // namespace copus
