// What a process that computes on GPUs has in its environment. CUDA, NCCL and libtorch read it when they begin.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace copus {

// Sets what the user has left open:
// - CUDA_DEVICE_MAX_CONNECTIONS=32: the most hardware queues that CUDA gives a process;
// - NCCL_NVLS_ENABLE=0: sums inside NVSwitch differ between two calls on the same data, so runs would not repeat;
// - PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: memory that torch gives back can serve allocations of other
// sizes. To be called before the first use of a GPU and before other threads start.
void set_gpu_environment();

// Has NCCL begin the operations of all communicators of a process in the order in which they were issued, unless the
// user has decided otherwise (NCCL_LAUNCH_ORDER_IMPLICIT, since 2.26; older versions ignore it). To be called before
// NCCL's first operation. It does nothing with drivers before CUDA 12.3, where NCCL would run one operation at a time:
// the messages of interleaved pipelines then wait in a circle (joins_receive in schedule/schedule.h).
void order_nccl_launches(int64_t driver_version);

// Why this process has too few hardware queues for a pipeline, as a message to the user; nothing where it has enough.
std::optional<std::string> lack_of_hardware_queues();

// All variables of the environment that begin with "NCCL_", sorted: "NCCL_DEBUG=INFO NCCL_NVLS_ENABLE=0".
std::string nccl_settings();

}  // namespace copus
