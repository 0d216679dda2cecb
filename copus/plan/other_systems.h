// Training programs other than Copus, as far as they decide a step's time and memory: those that a plan can be made
// for, and what others are built from.
#pragma once

#include "copus/base/units.h"
#include "copus/performance/training_system.h"

namespace copus {

// Bytes of a logit where PyTorch's cross entropy works on all of them: bf16, fp32, the fp32 log-softmax, its fp32
// gradient, and that in bf16.
inline constexpr double eager_logit_bytes = 2 + 4 + 4 + 4 + 2;

// A CUDA context and NCCL's buffers take about this much of a device.
inline constexpr double cuda_bytes = gibibyte;

// PyTorch's FSDP rounds the shares of the fp32 weights as it gathers them, and keeps no shares of rounded ones.
inline constexpr double fsdp_optimizer_bytes = 12 - 2;

// PyTorch without a compiler. Its memory is not described.
TrainingSystem eager_pytorch();

TrainingSystem megatron();

// nanotron 0.5.
TrainingSystem nanotron();

// torchtitan 0.2.2 and 0.3.0 with FSDP2, their layers compiled. No time of it was compared with a prediction: passes,
// launches and communication are those of Copus.
enum class TorchtitanVersion { v0_2, v0_3 };
TrainingSystem torchtitan(TorchtitanVersion version);

}  // namespace copus
