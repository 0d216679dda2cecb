// A job whose ranks have a GPU each, over any world that connects them as processes: device memory travels over NCCL
// (RCCL on AMD's), host memory, health and clock are the host world's.
#pragma once

#include <cstdint>
#include <memory>

#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/gpu/nccl_interface.h"
#include "copus/comm/world.h"

namespace copus {

// The communicators of NCCL's that a rank keeps for layouts to come back to: what three or four layouts use. Each
// takes memory of the device, which World::communicator_bytes counts.
inline constexpr int64_t kept_nccl_communicators = 32;

// Every rank calls it at the same time, on the thread and with the device that it will compute on. No two ranks may
// have the same GPU. Groups have to be prepared (World::prepare) before device memory travels in them, those with
// neighbours_message before their members send it to each other: InternalError otherwise. An operation that is not done
// after `wait_seconds` ends the job, as does what NCCL reports: the failure says which, and every later call throws it.
// Throws UserError where the library is not to be had.
std::unique_ptr<World> over_nccl(std::unique_ptr<World> host, std::shared_ptr<DeviceRuntime> runtime,
                                 double wait_seconds = default_wait_seconds);

// Over this library.
std::unique_ptr<World> over_nccl(std::unique_ptr<World> host, std::shared_ptr<DeviceRuntime> runtime,
                                 double wait_seconds, const NcclInterface& nccl,
                                 int64_t kept = kept_nccl_communicators);

}  // namespace copus
