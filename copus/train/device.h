// The device that a run computes on, and the process-wide settings of ATen that make it repeat bitwise.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "copus/comm/world.h"
#include "copus/config/run_config.h"

namespace copus {

// "cpu", "cuda" or "cuda:N". Throws UserError for another name, when this libtorch was built without CUDA, and when
// there is no such device.
at::Device find_device(const std::string& name);

// What `wanted` means on rank 0's device, since others may measure otherwise. Every rank calls it.
Precision agree_on_precision(Precision wanted, at::Device device, World& world);

// Deterministic kernels, and the number of threads that one operation may use; 0: this rank's share of the cores, which
// `local_ranks` share, and at least one. Returns whether the cores suffice for all threads of all these ranks.
bool configure_aten(int64_t threads, int64_t local_ranks = 1);

}  // namespace copus
