// Describes training programs other than Copus for which a plan can be made: the properties that determine a step's
// time and memory, and the parts from which these descriptions are built.
#pragma once

#include "copus/base/text/units.h"
#include "copus/performance/training_system.h"

namespace copus {

// Bytes of a logit if PyTorch's cross entropy processes all logits at once: the bf16 logit, its fp32 copy, the fp32
// log-softmax, its fp32 gradient, and the bf16 gradient.
inline constexpr double eager_logit_bytes = 2 + 4 + 4 + 4 + 2;

// Approximate device memory of a CUDA context and NCCL's buffers.
inline constexpr double cuda_bytes = gibibyte;

// PyTorch's FSDP casts its shard of the fp32 weights to bf16 for each all-gather, and keeps no bf16 shard.
inline constexpr double fsdp_optimizer_bytes = 12 - 2;

// PyTorch without a compiler. Its memory is not described.
TrainingSystem eager_pytorch();

TrainingSystem megatron();

// nanotron 0.5.
TrainingSystem nanotron();

// torchtitan 0.2.2 and 0.3.0 with FSDP2 and compiled layers. Predictions have not been compared with torchtitan's
// times: passes, launches and communication are assumed to be as in Copus.
enum class TorchtitanVersion { v0_2, v0_3 };
TrainingSystem torchtitan(TorchtitanVersion version);

}  // namespace copus
