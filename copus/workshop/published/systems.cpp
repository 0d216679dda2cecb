#include "copus/workshop/published/systems.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "copus/workshop/published/memory.h"

namespace copus {

namespace {

// Kernel by kernel as PyTorch without a compiler runs a layer of Llama's form, with FlashAttention and a fused RMSNorm:
// forward, a norm reads and writes once and an addition reads twice and writes once, each twice; queries, keys and
// values are split, rotated and put together; the activation function, then a product. The backward pass reads and
// writes each of them again and once more for each second operand. The numbers of launches are estimates.
TrainingSystem eager_pytorch() {
  TrainingSystem system;
  system.forward = {.stream = 10, .attention = 6, .feed_forward = 5, .launches = 120};
  system.backward = {.stream = 12, .attention = 8, .feed_forward = 13, .launches = 240};
  system.logit_bytes = 30;  // the loss is computed in fp32, in several kernels
  system.overlaps_tensor_backward = false;
  system.gathers_after_recompute = true;
  system.recomputes_down_projection = true;
  return system;
}

// nanotron 0.5. From its code: gradients are made in bf16 and added to fp32 ones, 12 bytes for each. Without ZeRO they
// are reduced by PyTorch's DDP, in pieces, beside the backward pass. With ZeRO-1 one all-reduce of all of them follows
// the backward pass (trainer.py), and after the update one all-gather, of which each of a layer's six tensors is cut
// out and copied for each rank by itself (distributed.py, all_gather_coalesced): on 256 ranks the host takes longer for
// that than the network.
//
// Four figures are fitted. gather_launches, 1.4 launches for each of these copies, was fitted to half of the sets of 64
// and 256 GPUs (bench/predictions/README.md). Three were fitted by hand to the sets of up to 32, held-out ones not
// demonstrably kept out of that: read the agreement that is reported for those with this in mind. With tensor
// parallelism its layers keep the host busy for 3.7 ms, and in pipelines across nodes for 1.85 ms per tensor-parallel
// rank more: that is the time of a layer of 1.3, 3.6 and 8.9 billion parameters alike, at every micro-batch too small
// to hide it. And some runs of pipelines lose 0.5 s of every micro-batch with two pipeline ranks, 1.0 to 1.3 s with
// four and more, whatever the model: on up to 64 GPUs mostly those that nearly fill the memory, on 256 almost every
// second.
TrainingSystem nanotron(const PublishedRun& run) {
  TrainingSystem system = eager_pytorch();
  if (run.configuration.strategy.zero_stage == 0) {
    system.bucket_parameters = 25.0 * 1024 * 1024 / 2;  // PyTorch's DDP: 25 MiB of bf16 gradients
  } else {
    system.overlaps_reduction = false;
    system.scatters_gradients = false;
    system.bucket_parameters = std::numeric_limits<double>::infinity();
    system.gather_launches = 8.4;
  }
  system.name = "nanotron";
  system.stage_cut = StageCut::thresholds;
  system.memory = describe_published_memory(run).system.memory;
  system.stall_seconds = 0.25;
  system.accumulation_bytes = 12;
  system.dense_embedding_bytes = 4;
  system.overlaps_tensor_backward = true;
  system.collective_copies = 2;
  system.collective_launches = 38;
  system.pipelined_collective_launches = 37;
  return system;
}

// Megatron-LM and programs that are built on it. Passes and launches are estimates: about half of what fused kernels
// leave of eager PyTorch's; no table or profile says them.
TrainingSystem megatron_passes() {
  TrainingSystem system = eager_pytorch();
  system.name = "megatron";
  system.stage_cut = StageCut::equal;
  system.forward = {.stream = 8, .attention = 4, .feed_forward = 3, .launches = 60};
  system.backward = {.stream = 10, .attention = 6, .feed_forward = 6, .launches = 120};
  system.accumulation_bytes = 4;  // fused with the product, which hides half of it
  return system;
}

// Aleph Alpha's "scaling" (Hagemann et al. 2023): Megatron-LM's layers without its fused kernels but those that a run's
// note names.
TrainingSystem aleph_alpha_passes(const PublishedRun& run) {
  TrainingSystem system = eager_pytorch();
  system.name = "aleph-alpha";
  system.stage_cut = StageCut::equal;
  system.gradient_bytes = 2;
  system.reduced_bytes = 2;
  system.accumulation_bytes = 4;
  system.overlaps_reduction = false;
  if (!contains(run.notes, "RMS kernel")) {
    // An RMSNorm of single operations in fp32: 34 bytes for an element forward, twice that backward, twice in a layer.
    system.forward.stream += 34;
    system.backward.stream += 68;
    system.forward.launches += 16;
    system.backward.launches += 40;
  }
  // Scores in memory: masked and normalised in fp32, or in one fused kernel.
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

// InternEvo: bf16 gradients; the optimizer state is shared by groups of ranks of a size that the run names.
TrainingSystem internevo(const PublishedRun& run) {
  TrainingSystem system = megatron_passes();
  system.name = "internevo";
  system.gradient_bytes = 2;
  system.reduced_bytes = 2;
  system.optimizer_group = run.zero_group;
  return system;
}

// Megatron-DeepSpeed as BLOOM used it: ZeRO-1 by DeepSpeed, gradients reduced after the last micro-batch.
TrainingSystem megatron_deepspeed() {
  TrainingSystem system = megatron_passes();
  system.name = "megatron-deepspeed";
  system.reduced_bytes = 2;
  system.overlaps_reduction = false;
  return system;
}

TrainingSystem flagscale() {
  TrainingSystem system = megatron_passes();
  system.name = "flagscale";
  system.overlaps_reduction = false;  // the table says so
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
    described.system = nanotron(run);
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
