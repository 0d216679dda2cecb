// Makes the world of a job whose ranks compute on GPUs, on top of any world that connects their processes. Host memory
// travels as in that underlying world.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/world.h"

namespace copus {

// Returns a world in which device memory travels through pinned host memory and then through `world`. Sums have the
// order of `world`. This works on every `world`, but is slow: it is for tests and for ranks that share GPUs. If every
// rank has its own GPU, use nccl_world.h.
std::unique_ptr<World> stage_through_host(std::unique_ptr<World> world, std::shared_ptr<DeviceRuntime> runtime);

// The devices on which the ranks of a job compute.
struct DevicePlaces {
  int64_t machines;
  std::optional<std::pair<int64_t, int64_t>> sharing;  // two ranks on the same physical device, if there are any
};

// Every rank calls this, and all get the same result.
DevicePlaces find_device_places(World& world, const DeviceRuntime& runtime);

}  // namespace copus
