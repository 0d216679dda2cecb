#include "copus/workshop/published/memory.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "copus/base/text/units.h"
#include "copus/plan/other_systems.h"

namespace copus {
namespace {

// Describes the Megatron-like program of Hagemann et al. 2023 (arXiv 2311.05610), later published as Aleph Alpha's
// "scaling". Facts from its code:
// - weights and gradients are bf16, always with ZeRO-1;
// - reductions use a buffer of 500 million bf16 gradients;
// - the head's logits are gathered over the tensor-parallel ranks for PyTorch's cross entropy;
// - layers are divided equally over the stages;
// - RMSNorm is eager.
//
// A layer keeps tensors of the hidden size, counted here in bf16 tensors. The two residual streams count 2. Each of the
// two eager norms counts 5: its fp32 input, its fp32 normalized input and its result. Together these are 12. Fused
// norms keep only their results, which makes 4. In both cases one more tensor was added to fit the runs that ran out of
// memory.
TrainingSystem aleph_alpha_memory(const PublishedRun& run) {
  TrainingSystem system;
  system.name = "aleph alpha";
  system.gradient_bytes = 2;
  system.stage_cut = StageCut::equal;
  MemoryUse& use = system.memory;
  use = {};
  const bool fused_norm = contains(run.notes, "RMS kernel");
  use.kept = {.hidden = fused_norm ? 5.0 : 13.0, .query = 3, .key_value = 2, .feed_forward = 4};
  use.working = {.gathered = 4, .feed_forward = 4};
  if (contains(run.notes, "kernel=torch") || contains(run.notes, "kernel=fused")) {
    // PyTorch keeps bf16 scores, the mask, and the fp32 softmax with its bf16 copy. Megatron's kernel keeps scores and
    // softmax in bf16. In the backward pass, both also hold fp32 gradients of these tensors, in memory blocks that no
    // other tensor can use.
    use.kept.score_bytes = contains(run.notes, "kernel=torch") ? 8 : 4;
    use.working.score_bytes = 32;
  } else if (contains(run.notes, "flash_attentionv1")) {
    // FlashAttention 1 needs contiguous copies of q, and of k and v packed.
    use.kept.query += 1;
    use.kept.key_value += 1;
  }
  use.kept_without_attention = use.kept;
  use.kept_without_attention.score_bytes = 0;
  use.logit_bytes = eager_logit_bytes;
  use.gathers_logits = true;
  use.fixed_bytes = cuda_bytes + 500e6 * 2;
  return system;
}

// NVIDIA's recipes reduce gradients in bf16.
TrainingSystem nemo() {
  TrainingSystem system = megatron();
  system.name = "nemo";
  system.gradient_bytes = 2;
  return system;
}

// MPT models use flash-attention's fused cross entropy by default. It keeps logits, their shifted copy and the
// gradient, in bf16. LLM Foundry's "PURE" mixed precision computes and reduces gradients in bf16.
TrainingSystem llm_foundry() {
  TrainingSystem system = megatron();
  system.name = "llm-foundry";
  system.reduced_bytes = 2;
  system.optimizer_bytes = fsdp_optimizer_bytes;
  system.memory.logit_bytes = 3 * 2;
  // Positions are biases of scores, so nothing is rotated.
  system.memory.kept.query = system.memory.kept.key_value = 2;
  return system;
}

}  // namespace

double published_memory_bytes(const std::string& hardware) {
  const size_t unit = hardware.find("GB");
  if (unit == std::string::npos || unit == 0) return 0;
  size_t begin = unit;
  while (begin > 0 && hardware[begin - 1] >= '0' && hardware[begin - 1] <= '9') --begin;
  double gigabytes = 0;
  std::from_chars(hardware.data() + begin, hardware.data() + unit, gigabytes);
  // The number on the card is in gibibytes. The driver keeps about a hundredth of it: an "80 GB" A100 has 79.15 GiB.
  return gigabytes * gibibyte * 0.9894;
}

PublishedMemoryCase describe_published_memory(const PublishedRun& run) {
  PublishedMemoryCase described;
  const auto left_out = [&](std::string reason) {
    described.left_out = std::move(reason);
    return described;
  };
  if (!run.unusable.empty()) return left_out(run.unusable);
  described.memory_bytes = published_memory_bytes(run.hardware);
  if (described.memory_bytes == 0) return left_out("hardware '" + run.hardware + "' does not say its memory");

  if (run.recompute.empty()) return left_out("recompute is not said");
  // llm.q keeps its moments in bf16, and in host memory if the device has no room.
  if (contains(run.framework, "llm.q")) return left_out("llm.q moves state to the host");

  described.model = run.gated_model();
  described.configuration = run.configuration;
  described.sequence_length = std::max<int64_t>(1, run.sequence_length / run.context_parallel);
  int64_t& zero_stage = described.configuration.strategy.zero_stage;
  if (contains(run.framework, "nanotron")) {
    described.system = nanotron();
  } else if (contains(run.framework, "Aleph Alpha")) {
    described.system = aleph_alpha_memory(run);
    if (!run.zero_stage_said) zero_stage = 1;
  } else if (contains(run.framework, "NeMo") || contains(run.framework, "Megatron-Bridge")) {
    described.system = nemo();
    // This program's distributed optimizer and sequence parallelism are on by default.
    if (!run.zero_stage_said) zero_stage = 1;
    if (!run.sequence_parallel_said) {
      ParallelStrategy& strategy = described.configuration.strategy;
      strategy.sequence_parallel = strategy.tensor_parallel > 1;
    }
  } else if (contains(run.framework, "llm-foundry")) {
    described.system = llm_foundry();
  } else if (contains(run.framework, "torchtitan")) {
    described.system = torchtitan(TorchtitanVersion::v0_2);
    described.system.stage_cut = StageCut::equal;  // as in the published comparison of memory
  } else {
    described.system = megatron();
  }
  // As in the published comparison of memory: inputs that a recompute gathers are kept until the weight gradients.
  described.system.gathers_after_recompute = false;
  described.system.optimizer_group =
      run.zero_group > 0 ? run.zero_group : described.configuration.strategy.data_parallel * run.context_parallel;
  return described;
}

}  // namespace copus
