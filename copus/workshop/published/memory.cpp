#include "copus/workshop/published/memory.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "copus/base/units.h"

namespace copus {
namespace {

// Bytes of a logit where PyTorch's cross entropy works on all of them: bf16, fp32, the fp32 log-softmax, its fp32
// gradient, and that in bf16.
constexpr double eager_logit_bytes = 2 + 4 + 4 + 4 + 2;

// A CUDA context and NCCL's buffers take about this much of a device.
constexpr double cuda_bytes = gibibyte;

// PyTorch's FSDP rounds the shares of the fp32 weights as it gathers them, and keeps no shares of rounded ones.
constexpr double fsdp_optimizer_bytes = 12 - 2;

// nanotron 0.5. Facts from its code: bf16 weights, fp32 sums of gradients beside the bf16 gradients of a micro-batch,
// fp32 master weights and moments, which ZeRO-1 shares out; FlashAttention-2; an eager feed-forward block (gate, up,
// silu(gate), product); the fp32 softmax overwrites its input, over the rank's part of the vocabulary. Of the hidden
// and attention widths 9 tensors can be counted (both streams, both norms' results, q, k, v, output and its transposed
// copy); 11 are counted, which was fitted to the memory that the runs took.
TrainingSystem nanotron() {
  TrainingSystem system;
  system.name = "nanotron";
  system.stage_cut = StageCut::thresholds;
  MemoryUse& use = system.memory;
  use = {};
  use.kept = {.hidden = 4, .query = 4, .key_value = 3, .feed_forward = 4};
  use.kept_without_attention = use.kept;
  use.logit_bytes = eager_logit_bytes - 2;
  use.gradient_copy_bytes = 2;
  use.fixed_bytes = cuda_bytes;
  return system;
}

// The Megatron-like program of Hagemann et al. 2023 (arXiv 2311.05610), later published as Aleph Alpha's "scaling".
// Facts from its code: bf16 weights and gradients; ZeRO-1 throughout; a buffer of 500 million bf16 gradients to reduce;
// the head's logits gathered over the tensor-parallel ranks for PyTorch's cross entropy; layers cut equally; eager
// RMSNorm. Tensors as wide as the stream: both streams, and of each eager norm its input and normalized input in fp32
// and its result, 5 of bf16, make 12; fused norms keep their results, which makes 4. One more each was
// fitted to which of the runs failed.
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
    // PyTorch keeps scores in bf16, the mask and the fp32 softmax with its bf16 copy, Megatron's kernel scores and
    // softmax in bf16; in the backward pass both hold fp32 gradients of each step besides, in blocks that nothing else
    // fits into.
    use.kept.score_bytes = contains(run.notes, "kernel=torch") ? 8 : 4;
    use.working.score_bytes = 32;
  } else if (contains(run.notes, "flash_attentionv1")) {
    // FlashAttention 1 works on contiguous copies of q and of k and v packed.
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

// Megatron-Core and what is built alike: fused norms, rotary embedding and attention; fp32 gradients; fp32 logits over
// a part of the vocabulary, overwritten by their gradient. Layers' tensors as Korthikanti et al. 2022, section 4.1,
// count them, without dropout: both streams and both norms' results; queries, keys, values and output; the
// feed-forward's inner tensors.
TrainingSystem megatron_memory() {
  TrainingSystem system;
  system.name = "megatron";
  system.stage_cut = StageCut::equal;
  MemoryUse& use = system.memory;
  use = {};
  use.kept = {.hidden = 4, .query = 2, .key_value = 2, .feed_forward = 3};
  use.kept_without_attention = use.kept;
  use.working = {.hidden = 2, .feed_forward = 3};
  use.logit_bytes = eager_logit_bytes - 4 - 2;
  use.fixed_bytes = cuda_bytes;
  return system;
}

// NVIDIA's recipes reduce gradients in bf16.
TrainingSystem nemo() {
  TrainingSystem system = megatron_memory();
  system.name = "nemo";
  system.gradient_bytes = 2;
  return system;
}

// MPT models take flash-attention's fused cross entropy by default: logits, their shifted copy and the gradient, bf16.
// Its "PURE" mixed precision makes and reduces gradients in bf16.
TrainingSystem llm_foundry() {
  TrainingSystem system = megatron_memory();
  system.name = "llm-foundry";
  system.reduced_bytes = 2;
  system.optimizer_bytes = fsdp_optimizer_bytes;
  system.memory.logit_bytes = 3 * 2;
  return system;
}

// Selective recompute per operation keeps attention's result and every other matrix product's.
TrainingSystem torchtitan() {
  TrainingSystem system = megatron_memory();
  system.name = "torchtitan";
  system.optimizer_bytes = fsdp_optimizer_bytes;
  system.memory.kept_without_attention = {.hidden = 3, .query = 2, .key_value = 1, .feed_forward = 1};
  system.memory.logit_bytes = eager_logit_bytes;
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
  // The number on the card counts gibibytes, of which the driver keeps about a hundredth: an "80 GB" A100 has 79.15.
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
  // Its moments are bf16 and lie in the host's memory where the device has no room.
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
    // Its distributed optimizer is on by default, and so is sequence parallelism.
    if (!run.zero_stage_said) zero_stage = 1;
    if (!run.sequence_parallel_said) {
      ParallelStrategy& strategy = described.configuration.strategy;
      strategy.sequence_parallel = strategy.tensor_parallel > 1;
    }
  } else if (contains(run.framework, "llm-foundry")) {
    described.system = llm_foundry();
  } else if (contains(run.framework, "torchtitan")) {
    described.system = torchtitan();
  } else {
    described.system = megatron_memory();
  }
  described.system.optimizer_group =
      run.zero_group > 0 ? run.zero_group : described.configuration.strategy.data_parallel * run.context_parallel;
  return described;
}

}  // namespace copus
