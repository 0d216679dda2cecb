#include "copus/plan/other_systems.h"

#include <limits>

namespace copus {

namespace {

// Describes Megatron-Core and similar programs, which fuse norms, rotary embedding and attention. For the vocabulary
// they keep the bf16 logits or their gradient, and one fp32 tensor for the rank's part of the vocabulary, in which
// logits, softmax and gradient overwrite each other (tensor_parallel/cross_entropy.py).
//
// A layer's tensors follow Korthikanti et al. 2022, section 4.1, without dropout:
// - both streams and the results of both norms;
// - rotated queries and keys, and attention's output;
// - the joint tensor of queries, keys and values; the values are a view of it;
// - the feed-forward's inner tensors.
//
// The layer of Megatron-Core 0.16.1, run under a fake process group, keeps the same tensors (bench/trainers).
// Recomputing only attention saves nothing, because fused attention keeps no scores.
MemoryUse megatron_memory() {
  MemoryUse use = {};
  use.kept = {.hidden = 4, .query = 3, .key_value = 3, .feed_forward = 3};
  use.kept_without_attention = use.kept;
  use.kept_of_normed_heads = {.query = 1};  // measured by bench/trainers
  use.working = {.hidden = 2, .feed_forward = 3};
  use.logit_bytes = 2 + 4;
  use.fixed_bytes = cuda_bytes;
  return use;
}

// Describes nanotron, according to its code. It keeps fp32 sums of gradients in addition to a micro-batch's bf16
// gradients. It uses FlashAttention-2, an eager feed-forward block (gate, up, silu(gate), product), and an fp32 softmax
// over the rank's part of the vocabulary, which overwrites its input.
//
// Under a fake process group (bench/trainers), a layer keeps queries, keys, values, the output, and 4 tensors of the
// residual stream's width: the inputs and the results of both norms. With several sequences, the layer also keeps a
// copy of the output. In addition, we count two tensors of the queries' width and one of the width of keys or values.
// They were fitted to the memory of published runs, and cover fragmentation and the backward pass' working memory.
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

// The kernels of PyTorch for a layer of Llama's form, with FlashAttention and a fused RMSNorm. A layer's forward pass
// has (a) two norms, each of which reads and writes a tensor once; (b) two additions, each of which reads two tensors
// and writes one; (c) splitting, rotating and concatenating of queries, keys and values; (d) the activation function
// and a product. In the backward pass, each of these operations reads and writes its tensors again, and its second
// operand once more. The numbers of launches are estimates.
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

// The numbers of passes over memory and of kernel launches are estimates: about half as many as in eager PyTorch,
// because kernels are fused. No published table or profile confirms them.
TrainingSystem megatron() {
  TrainingSystem system = eager_pytorch();
  system.name = "megatron";
  system.stage_cut = StageCut::even;
  system.memory = megatron_memory();
  system.forward = {.stream = 8, .attention = 4, .feed_forward = 3, .launches = 60};
  system.backward = {.stream = 10, .attention = 6, .feed_forward = 6, .launches = 120};
  system.accumulation_bytes = 4;  // the addition is fused with the matrix product, which hides half of it
  return system;
}

// Describes nanotron, according to its code. Gradients are computed in bf16 and added to fp32 gradients, which moves 12
// bytes per parameter. Without ZeRO, PyTorch's DDP reduces the gradients in buckets during the backward pass. With
// ZeRO-1, one all-reduce of all gradients follows the backward pass (trainer.py), and one all-gather follows the
// update. Each of a layer's six tensors is then copied from the gathered result, separately for each rank
// (distributed.py, all_gather_coalesced). On 256 ranks, launching these copies takes the host longer than the
// all-gather takes the network.
//
// Four numbers are fitted. gather_launches counts 1.4 launches for each of these copies, which is 8.4 per layer and
// rank. It was fitted to half of the sets of published runs on 64 and 256 GPUs (bench/predictions/README.md). The other
// three numbers were fitted by hand to the sets on up to 32 GPUs. Perhaps this fit included the held-out sets, so the
// reported agreement for the held-out sets may be too good. The three numbers describe two effects:
// - With tensor parallelism, nanotron's layers keep the host busy for 3.7 ms, and in pipelines across nodes for 1.85 ms
//   more per tensor-parallel rank. This time does not depend on the micro-batch, and is the same in models with 1.3,
//   3.6 and 8.9 billion parameters.
// - Some pipeline runs lose 0.5 s in every micro-batch with two pipeline ranks, and 1.0 to 1.3 s with four and more,
//   whatever the model. On up to 64 GPUs these are mostly runs that nearly fill the memory. On 256 GPUs they are almost
//   half of the runs.
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

// Describes torchtitan. The tensors that a layer keeps were measured on torchtitan 0.2.2's own layer, under a fake
// process group of 1, 2, 4 and 8 ranks (bench/trainers):
// - this rank's rows of the inputs of the layer's two norms;
// - with t > 1, the unsharded results of both norms: the layer all-gathers them (PrepareModuleInput), and the compiler
//   never recomputes a collective;
// - queries, keys, values and output;
// - the feed-forward's inner tensors.
//
// With full recompute, the backward pass also holds five unsharded tensors: the gathered gradient of the output; the
// three parts of the input's gradient, from queries, keys and values; and the sum of these parts. Selective recompute
// per operation keeps the layer's input, the result of attention, and the results of every other matmul. These are
// queries, values and the gate in 0.2, and queries, keys, values and the gate in 0.3. With t > 1, selective recompute
// keeps one more tensor: a residual stream after its reduce-scatter. The numbers below omit this tensor.
//
// The head holds its gathered input and the gradient of that input. Version 0.3 processes one eighth of a micro-batch's
// rows at a time (ChunkedLossWrapper), and also holds a copy of the input in pieces, and the input's gradient in fp32.
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
