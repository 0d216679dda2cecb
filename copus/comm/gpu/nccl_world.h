// Makes the world of a job whose ranks have a GPU each, on top of any world that connects their processes. Device
// memory travels over NCCL (RCCL on AMD GPUs). Host memory, health and clock belong to the underlying world.
#pragma once

#include <cstdint>
#include <memory>

#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/gpu/nccl_interface.h"
#include "copus/comm/world.h"

namespace copus {

// The limit of device memory for unused NCCL communicators. A rank keeps communicators that its current layout does not
// use, in case the job returns to an earlier layout. World::communicator_bytes includes them.
inline constexpr int64_t kept_nccl_bytes = int64_t{1} << 30;

// Makes the world. Every rank calls this at the same time, on the thread and with the device with which it will
// compute. No two ranks may share a GPU. Before device memory travels in a group, the group must be prepared
// (World::prepare) for the kinds of operations that it will use; otherwise the operation throws InternalError.
//
// The job fails if an operation is not done after `wait_seconds`, or if NCCL reports an error; every later call throws
// that failure. Throws UserError if the library cannot be loaded.
std::unique_ptr<World> over_nccl(std::unique_ptr<World> host, std::shared_ptr<DeviceRuntime> runtime,
                                 double wait_seconds = default_wait_seconds);

// The same with a given library.
std::unique_ptr<World> over_nccl(std::unique_ptr<World> host, std::shared_ptr<DeviceRuntime> runtime,
                                 double wait_seconds, const NcclInterface& nccl, int64_t kept_bytes = kept_nccl_bytes);

}  // namespace copus
