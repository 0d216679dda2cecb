#include "copus/workshop/published/systems.h"

#include "copus/plan/other_systems.h"

namespace copus {

namespace {

// Describes Megatron-LM and programs based on it, for the comparison with published times. The collectives of the loss
// are assumed to be as large as Copus'. Megatron-LM's own are smaller, and a plan for Megatron-LM leaves them out.
TrainingSystem megatron_passes() {
  TrainingSystem system = megatron();
  system.memory = copus_memory_use();
  return system;
}

void reduce_after_backward(TrainingSystem& system) {
  system.reduction_without_zero.overlaps = system.reduction_with_zero.overlaps = false;
}

// Describes Aleph Alpha's "scaling" (Hagemann et al. 2023): like Megatron-LM, but with only those fused kernels that
// the run's notes name.
TrainingSystem aleph_alpha_passes(const PublishedRun& run) {
  TrainingSystem system = eager_pytorch();
  system.name = "aleph-alpha";
  system.stage_cut = StageCut::equal;
  system.gradient_bytes = 2;
  system.reduced_bytes = 2;
  system.accumulation_bytes = 4;
  reduce_after_backward(system);
  if (!contains(run.notes, "RMS kernel")) {
    // RMSNorm is made of separate operations in fp32. It moves 34 bytes per element forward and twice as many backward.
    // A layer has two norms.
    system.forward.stream += 34;
    system.backward.stream += 68;
    system.forward.launches += 16;
    system.backward.launches += 40;
  }
  // Attention scores are written to memory, and then masked and normalised either by separate fp32 operations or by one
  // fused kernel.
  if (contains(run.notes, "kernel=torch")) system.attention_matrix_bytes = 30;
  if (contains(run.notes, "kernel=fused")) system.attention_matrix_bytes = 12;
  return system;
}

// PaddlePaddle: fp16 gradients.
TrainingSystem paddle() {
  TrainingSystem system = megatron_passes();
  system.name = "paddle";
  system.gradient_bytes = 2;
  system.reduced_bytes = 2;
  return system;
}

// InternEvo: bf16 gradients; the optimizer state is sharded over groups of ranks whose size the run names.
TrainingSystem internevo(const PublishedRun& run) {
  TrainingSystem system = megatron_passes();
  system.name = "internevo";
  system.gradient_bytes = 2;
  system.reduced_bytes = 2;
  system.optimizer_group = run.zero_group;
  return system;
}

// Megatron-DeepSpeed as used for BLOOM: ZeRO-1 by DeepSpeed, and gradients reduced after the last micro-batch.
TrainingSystem megatron_deepspeed() {
  TrainingSystem system = megatron_passes();
  system.name = "megatron-deepspeed";
  system.reduced_bytes = 2;
  reduce_after_backward(system);
  return system;
}

TrainingSystem flagscale() {
  TrainingSystem system = megatron_passes();
  system.name = "flagscale";
  reduce_after_backward(system);  // according to the table
  return system;
}

}  // namespace

PublishedCase describe_published(const PublishedRun& run) {
  PublishedCase described;
  const auto left_out = [&](std::string reason) {
    described.left_out = std::move(reason);
    return described;
  };
  if (!run.unusable.empty()) return left_out("not in our terms: " + run.unusable);
  if (run.tokens_per_second_per_gpu.value_or(0) == 0) return left_out("no throughput given");
  if (run.context_parallel > 1) return left_out("context parallel");
  if (contains(run.precision, "fp8") || contains(run.precision, "fp4")) return left_out("precision below 16 bits");

  const bool is_h100 = contains(run.hardware, "H100"), is_a800 = contains(run.hardware, "A800");
  const bool is_a100 = contains(run.hardware, "A100");
  if (!is_h100 && !is_a800 && !is_a100) return left_out("hardware not described: " + run.hardware);
  described.cluster = is_h100 ? "h100-sxm" : is_a800 ? "a800-sxm" : "a100-sxm";
  const std::string& framework = run.framework;
  if (contains(framework, "nanotron")) {
    described.system = nanotron();
    described.cluster = "h100-playbook";
  } else if (contains(framework, "Aleph Alpha")) {
    described.system = aleph_alpha_passes(run);
  } else if (contains(framework, "Paddle")) {
    described.system = paddle();
  } else if (contains(framework, "InternEvo")) {
    described.system = internevo(run);
    described.cluster = "a100-4x100g";
  } else if (contains(framework, "Megatron-DeepSpeed")) {
    described.system = megatron_deepspeed();
    described.cluster = "a100-4x100g";
  } else if (contains(framework, "FlagScale")) {
    described.system = flagscale();
  } else if (contains(framework, "Megatron") || contains(framework, "NeMo")) {
    described.system = megatron_passes();
  } else {
    return left_out("framework not described: " + framework);
  }

  described.group = described.system.name + ", " + run.hardware;
  described.model = run.gated_model();
  described.configuration = run.configuration;
  return described;
}

}  // namespace copus
