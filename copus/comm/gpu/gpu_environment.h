// The environment variables of a process that computes on GPUs. CUDA, NCCL and libtorch read them at their start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace copus {

// Sets these variables unless the user has set them:
// - CUDA_DEVICE_MAX_CONNECTIONS=32: the largest number of hardware queues that CUDA gives a process;
// - NCCL_NVLS_ENABLE=0: sums inside NVSwitch differ between two calls on the same data, so runs would not repeat;
// - PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: memory that torch has freed can serve allocations of other sizes.
// Call this before the first use of a GPU and before other threads start.
void set_gpu_environment();

// Makes NCCL begin the operations of all communicators of a process in the order of issue, by setting
// NCCL_LAUNCH_ORDER_IMPLICIT unless the user has (since NCCL 2.26; older versions ignore it). Call this before the
// first NCCL operation. Does nothing with drivers before CUDA 12.3: there NCCL would run one operation at a time, and
// the messages of interleaved pipelines would deadlock (joins_receive in schedule/schedule.h).
void order_nccl_launches(int64_t driver_version);

// Why this process has too few hardware queues for a pipeline, as a message to the user; nothing if it has enough.
std::optional<std::string> lack_of_hardware_queues();

// All variables of the environment that begin with "NCCL_", sorted: "NCCL_DEBUG=INFO NCCL_NVLS_ENABLE=0".
std::string nccl_settings();

}  // namespace copus
