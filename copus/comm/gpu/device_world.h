// A job whose ranks compute on GPUs, over any world that connects them as processes: host memory goes its ways, device
// memory those of the GPUs.
#pragma once

#include <memory>

#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/world.h"

namespace copus {

// For ranks that share GPUs, and for tests: device memory travels through pinned host memory and the transport of
// `world`, with its fixed order of summation. Works wherever `world` does.
std::unique_ptr<World> stage_through_host(std::unique_ptr<World> world, std::shared_ptr<DeviceRuntime> runtime);

// Whether two ranks compute on one physical device. Every rank calls it; the same answer on all.
bool ranks_share_a_device(World& world, const DeviceRuntime& runtime);

}  // namespace copus
