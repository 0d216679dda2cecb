// For tests: a random sequence of operations in overlapping groups, the same on all ranks, every result checked.
#pragma once

#include <cstdint>
#include <string>

#include "copus/comm/testing/fake_device_runtime.h"
#include "copus/comm/world.h"

namespace copus {

// Runs this rank's part, at its own random pace. Returns the first difference from the expected results, or an empty
// text. With a device, which `world` must know, every second operation is on device memory: kernels write the input
// before the operation and check the result after it.
std::string run_random_operations(World& world, uint64_t seed, int64_t operations, FakeDeviceRuntime* device = nullptr);

}  // namespace copus
