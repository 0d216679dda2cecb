// A job whose ranks have a GPU each, over any world that connects them as processes. Device memory travels over NCCL
// (RCCL on AMD's GPUs). Host memory, health and clock are those of the host's world.
#pragma once

#include <cstdint>
#include <memory>

#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/gpu/nccl_interface.h"
#include "copus/comm/world.h"

namespace copus {

// The device memory up to which a rank keeps communicators of NCCL's that its layout does not use, for layouts to come
// back to. World::communicator_bytes counts what they take.
inline constexpr int64_t kept_nccl_bytes = int64_t{1} << 30;

// Every rank calls it at the same time, on the thread and with the device that it will compute on. No two ranks may
// have the same GPU. Groups have to be prepared (World::prepare) before device memory travels in them, and with
// the kinds of operations that they are used for: InternalError otherwise. An operation that is not done
// after `wait_seconds` ends the job, and so does an error that NCCL reports. Every later call throws that failure.
// Throws UserError where the library is not to be had.
std::unique_ptr<World> over_nccl(std::unique_ptr<World> host, std::shared_ptr<DeviceRuntime> runtime,
                                 double wait_seconds = default_wait_seconds);

// The same over a given library.
std::unique_ptr<World> over_nccl(std::unique_ptr<World> host, std::shared_ptr<DeviceRuntime> runtime,
                                 double wait_seconds, const NcclInterface& nccl, int64_t kept_bytes = kept_nccl_bytes);

}  // namespace copus
