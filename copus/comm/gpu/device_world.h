// A job whose ranks compute on GPUs, over any world that connects them as processes. Host memory travels as in that
// world.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/world.h"

namespace copus {

// Device memory travels through pinned host memory and `world`, and is summed in its order. This works wherever `world`
// does. It is for ranks that share GPUs (nccl_world.h is for others), and for tests.
std::unique_ptr<World> stage_through_host(std::unique_ptr<World> world, std::shared_ptr<DeviceRuntime> runtime);

// Where the ranks of a job compute.
struct DevicePlaces {
  int64_t machines;
  std::optional<std::pair<int64_t, int64_t>> sharing;  // two ranks on one physical device, if any are
};

// Every rank calls it, and all get the same answer.
DevicePlaces find_device_places(World& world, const DeviceRuntime& runtime);

}  // namespace copus
