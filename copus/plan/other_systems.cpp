#include "copus/plan/other_systems.h"

#include <limits>

namespace copus {

namespace {

// Megatron-Core and what is built alike: fused norms, rotary embedding and attention; beside bf16 logits, or their
// gradient, one fp32 tensor over a part of the vocabulary: logits, softmax and gradient overwrite each other
// (tensor_parallel/cross_entropy.py). Layers' tensors as Korthikanti et al. 2022, section 4.1, count them,
// without dropout: both streams and both norms' results; rotated queries and keys, and the output; the joint product of
// queries, keys and values, of which the values are a view; the feed-forward's inner tensors. The layer of
// Megatron-Core 0.16.1 keeps the same under a fake process group (bench/trainers). Recomputing attention alone saves
// nothing, since fused attention keeps no scores.
MemoryUse megatron_memory() {
  MemoryUse use = {};
  use.kept = {.hidden = 4, .query = 3, .key_value = 3, .feed_forward = 3};
  use.kept_without_attention = use.kept;
  use.kept_of_normed_heads = {.query = 1};  // (bench/trainers)
  use.working = {.hidden = 2, .feed_forward = 3};
  use.logit_bytes = 2 + 4;
  use.fixed_bytes = cuda_bytes;
  return use;
}

// Facts from nanotron's code: fp32 sums of gradients beside the bf16 gradients of a micro-batch; FlashAttention-2; an
// eager feed-forward block (gate, up, silu(gate), product); the fp32 softmax overwrites its input, over the rank's part
// of the vocabulary. Its own layer keeps 4 tensors as wide as the stream (both streams, both norms' results) and q, k,
// v and output under a fake process group (bench/trainers), where output is copied once more for several sequences; of
// attention's widths two queries' and one of keys or values are counted beyond that, which was fitted to the memory
// that the runs took: the allocator's pieces, and what the backward pass works on.
MemoryUse nanotron_memory() {
  MemoryUse use = {};
  use.kept = {.hidden = 4, .query = 4, .key_value = 3, .feed_forward = 4};
  use.kept_without_attention = use.kept;
  use.logit_bytes = eager_logit_bytes - 2;
  use.gradient_copy_bytes = 2;
  use.fixed_bytes = cuda_bytes;
  return use;
}

}  // namespace

// Kernel by kernel as PyTorch runs a layer of Llama's form, with FlashAttention and a fused RMSNorm: forward, a norm
// reads and writes once and an addition reads twice and writes once, each twice; queries, keys and values are split,
// rotated and put together; the activation function, then a product. The backward pass reads and writes each of them
// again and once more for each second operand. The numbers of launches are estimates.
TrainingSystem eager_pytorch() {
  TrainingSystem system;
  system.forward = {.stream = 10, .attention = 6, .feed_forward = 5, .launches = 120};
  system.backward = {.stream = 12, .attention = 8, .feed_forward = 13, .launches = 240};
  system.logit_bytes = 30;  // the loss is computed in fp32, in several kernels
  system.overlaps_tensor_backward = false;
  system.overlaps_gathers = false;  // PyTorch's ZeroRedundancyOptimizer; Megatron-LM without --overlap-param-gather
  system.gathers_after_recompute = true;
  system.recomputes_down_projection = true;
  return system;
}

// Passes and launches are estimates: about half of what fused kernels leave of eager PyTorch's; no table or profile
// says them.
TrainingSystem megatron() {
  TrainingSystem system = eager_pytorch();
  system.name = "megatron";
  system.stage_cut = StageCut::even;
  system.memory = megatron_memory();
  system.forward = {.stream = 8, .attention = 4, .feed_forward = 3, .launches = 60};
  system.backward = {.stream = 10, .attention = 6, .feed_forward = 6, .launches = 120};
  system.accumulation_bytes = 4;  // fused with the product, which hides half of it
  return system;
}

// From its code: gradients are made in bf16 and added to fp32 ones, 12 bytes for each. Without ZeRO they are reduced by
// PyTorch's DDP, in pieces, beside the backward pass. With ZeRO-1 one all-reduce of all of them follows the backward
// pass (trainer.py), and after the update one all-gather, of which each of a layer's six tensors is cut out and copied
// for each rank by itself (distributed.py, all_gather_coalesced): on 256 ranks the host takes longer for that than the
// network.
//
// Four figures are fitted. gather_launches, 1.4 launches for each of these copies, was fitted to half of the sets of 64
// and 256 GPUs (bench/predictions/README.md). Three were fitted by hand to the sets of up to 32, held-out ones not
// demonstrably kept out of that: read the agreement that is reported for those with this in mind. With tensor
// parallelism its layers keep the host busy for 3.7 ms, and in pipelines across nodes for 1.85 ms per tensor-parallel
// rank more: that is the time of a layer of 1.3, 3.6 and 8.9 billion parameters alike, at every micro-batch too small
// to hide it. And some runs of pipelines lose 0.5 s of every micro-batch with two pipeline ranks, 1.0 to 1.3 s with
// four and more, whatever the model: on up to 64 GPUs mostly those that nearly fill the memory, on 256 almost every
// second.
TrainingSystem nanotron() {
  TrainingSystem system = eager_pytorch();
  system.name = "nanotron";
  system.stage_cut = StageCut::thresholds;
  system.memory = nanotron_memory();
  system.reduction_without_zero.bucket_parameters = 25.0 * 1024 * 1024 / 2;  // DDP: 25 MiB of bf16 gradients
  system.reduction_with_zero = {.overlaps = false, .bucket_parameters = std::numeric_limits<double>::infinity()};
  system.scatters_gradients = false;
  system.gather_launches = 8.4;
  system.stall_seconds = 0.25;
  system.accumulation_bytes = 12;
  system.dense_embedding_bytes = 4;
  system.overlaps_tensor_backward = true;
  system.collective_copies = 2;
  system.collective_launches = 38;
  system.pipelined_collective_launches = 37;
  return system;
}

// What a layer keeps was read off torchtitan 0.2.2's own, run under a fake process group of 1, 2, 4 and 8 ranks
// (bench/trainers): both streams' rows of a rank; with t > 1 both norms' results by whole rows, since it gathers them
// (PrepareModuleInput) and no compiler recomputes a collective; queries, keys, values and output; the feed-forward's
// inner tensors. Its backward pass with full recompute then holds five more tensors by whole rows: the gathered
// gradient of the output, the queries', keys' and values' parts of the input's, and their sum. Selective recompute per
// operation keeps the layer's input, attention's result, and the results of every second matrix product: queries,
// values (in 0.3 queries, keys and values together) and the gate. With t > 1 it keeps one more reduced stream, not
// counted here.
//
// The head keeps its gathered input, and makes its gradient. 0.3 works on eighths of a micro-batch's rows
// (ChunkedLossWrapper), with a copy of its input in pieces and the gradient in fp32.
TrainingSystem torchtitan(TorchtitanVersion version) {
  TrainingSystem system;
  system.name = "torchtitan";
  system.stage_cut = StageCut::ends_count;
  system.optimizer_bytes = fsdp_optimizer_bytes;
  system.overlaps_gathers = false;
  system.frees_after_backward = true;  // FSDP2's set_reshard_after_backward
  system.memory = megatron_memory();
  system.memory.kept = {.hidden = 2, .gathered = 2, .query = 2, .key_value = 2, .feed_forward = 3};
  system.memory.kept_without_attention = {.hidden = 1, .query = 2, .key_value = 1, .feed_forward = 1};
  system.memory.gathered_working = 5;
  system.memory.logit_bytes = eager_logit_bytes;
  system.memory.head_hidden = 2;
  if (version == TorchtitanVersion::v0_3) {
    system.memory.kept_without_attention.key_value = 2;
    system.memory.logit_pieces = 8;
    system.memory.head_hidden = 1 + 1 + 2;
  }
  return system;
}

}  // namespace copus
