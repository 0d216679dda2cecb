#include "copus/performance/training_system.h"

#include <algorithm>
#include <numeric>

#include "copus/base/error.h"
#include "copus/base/numbers/exact_sum.h"
#include "copus/description/configuration_fields.h"
#include "copus/description/muon.h"
#include "copus/placement/attention_block.h"
#include "copus/placement/head_chunks.h"
#include "copus/placement/placed_tensors.h"

namespace copus {

namespace {

// Splits layers by thresholds (StageCut::thresholds). The cost of a block is the cost of its matrix products.
std::vector<LayerRange> cut_by_thresholds(const ModelDescription& model, int64_t num_stages) {
  const TrainingFlops flops = training_flops(model, 0);
  const double total = std::accumulate(flops.layers.begin(), flops.layers.end(), 0.0) + flops.head;

  std::vector<LayerRange> stages;
  int64_t end = 0;
  double reached = 0;
  for (int64_t stage = 1; stage <= num_stages; ++stage) {
    const int64_t begin = end;
    const double threshold = total * static_cast<double>(stage) / static_cast<double>(num_stages) * (1 - 1e-9);
    while (end < model.num_layers && (stage == num_stages || reached < threshold)) reached += flops.layers[end++];
    stages.push_back({begin, end});
  }
  return stages;
}

std::vector<LayerRange> cut_equally(const ModelDescription& model, int64_t num_stages) {
  std::vector<LayerRange> stages;
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    stages.push_back({model.num_layers * stage / num_stages, model.num_layers * (stage + 1) / num_stages});
  }
  return stages;
}

// If no choice of ends gives even stages, neither end counts as a layer.
std::vector<LayerRange> cut_evenly(const ModelDescription& model, int64_t num_stages) {
  const std::optional<CountedEnds> ends = even_ends(model.num_layers, num_stages);
  if (!ends) return cut_equally(model, num_stages);
  const int64_t each = (model.num_layers + ends->layers()) / num_stages;
  std::vector<LayerRange> stages;
  int64_t end = ends->embedding ? -1 : 0;
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    const int64_t begin = end;
    end += each;
    stages.push_back({std::max<int64_t>(begin, 0), std::min(end, model.num_layers)});
  }
  return stages;
}

// Counts embedding and head as layers of the first and last stage. The first stages take the remainder.
std::vector<LayerRange> cut_with_ends(const ModelDescription& model, int64_t num_stages) {
  const int64_t blocks = model.num_layers + 2, each = blocks / num_stages, left_over = blocks % num_stages;
  std::vector<LayerRange> stages;
  int64_t end = -1;  // in blocks; the first block is the embedding
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    const int64_t begin = end;
    end += each + (stage < left_over ? 1 : 0);
    stages.push_back({std::max<int64_t>(begin, 0), std::min(end, model.num_layers)});
  }
  return stages;
}

}  // namespace

MemoryUse copus_memory_use() {
  MemoryUse use;
  // A layer keeps its input and the stream between its blocks; the results of two norms, or their inputs; queries,
  // keys, values and attention's output; gate and up. With recompute of attention it keeps none of queries, keys,
  // values and attention's output.
  use.kept = {.hidden = 4, .query = 2, .key_value = 2, .feed_forward_inputs = 1};
  use.kept_without_attention = {.hidden = 4, .feed_forward_inputs = 1};
  // Working: the gradients of the stream and of a norm's result, and the feed-forward's activation.
  use.working = {.hidden = 2, .feed_forward = 1};
  // The backward pass normalises queries and keys again, into another matrix that also holds the values.
  use.working_of_normed_heads = {.query = 1, .key_value = 2};
  // Waiting for W: the inputs of the four linear layers and the gradients of their outputs.
  use.waiting = {.gathered = 4, .query = 2, .key_value = 2, .feed_forward = 1, .feed_forward_inputs = 1};
  // The gradient of the logits overwrites the logits, piece by piece. The head keeps five tensors as wide as the hidden
  // size: the residual stream, the last block's output, their sum, the final norm's output, and a gradient.
  use.logit_bytes = 4;
  use.logits_at_once = logits_at_once_on_cpu;
  use.head_hidden = 5;
  use.separate_tied_gradient = true;
  use.kept_rotation_bytes = 4;
  return use;
}

namespace {

// Adds a GPU's memory. In addition to the joint gradient of queries, keys and values, flash attention's backward pass
// allocates each of the three gradients. The gradients of keys and values have one copy for each query head. The pass
// also allocates the fp32 sums of the queries' gradients: twice if the kernel is deterministic and there are at least
// half as many sequences times heads as multiprocessors. Context and NCCL buffers take about 1 GiB.
void move_to_gpu(MemoryUse& use) {
  use.working.query = 8;
  use.working.key_value = 4;
  use.logits_at_once = logits_at_once_on_gpu;
  use.fixed_bytes = 1024.0 * 1024 * 1024;
}

// Sets the optimizer's bytes and memory traffic per parameter. An update reads the gradient, and reads and writes the
// fp32 master weights and the slots. With bf16 weights it also writes the rounded master weights.
void set_optimizer(TrainingSystem& system, OptimizerKind optimizer) {
  constexpr double element = 4, rounding_traffic = 10;
  const auto slots = static_cast<double>(slot_bytes(optimizer));
  const bool keeps_master = system.weight_bytes < element;
  system.optimizer = optimizer;
  system.optimizer_bytes = slots + (keeps_master ? element : 0);
  system.optimizer_traffic = 3 * element + 2 * slots + (keeps_master ? rounding_traffic : 0);
  if (!needs_whole_matrices(optimizer)) return;
  system.whole_matrices = {.are_exchanged = true,
                           .newton_schulz_steps = MuonSettings().newton_schulz_steps,
                           .element_bytes = keeps_master ? 2.0 : 4.0};
  system.optimizer_traffic += 4 * element;  // momenta and directions are separate passes before the update
}

TrainingSystem copus_on(Processor processor) {
  TrainingSystem system;
  // Words that the agreement sums (train/step/step_agreement.cpp): three exact sums; rank 0's switch (a configuration,
  // a learning rate and two times); and the reasons to stop.
  constexpr auto words = 3 * static_cast<size_t>(ExactSum::num_words) + num_configuration_fields + 7;
  system.agreement_bytes = words * sizeof(int64_t);
  if (processor == Processor::cpu) system.attention_block = attention_block_on_cpu;
  if (processor == Processor::gpu) move_to_gpu(system.memory);
  return system;
}

}  // namespace

TrainingSystem copus_in_bf16(Processor processor, OptimizerKind optimizer) {
  TrainingSystem system = copus_on(processor);
  set_optimizer(system, optimizer);
  system.memory.logit_bytes = 2;
  system.memory.writes_score_gradients = processor == Processor::gpu;
  return system;
}

TrainingSystem copus_in_fp32(Processor processor, OptimizerKind optimizer) {
  TrainingSystem system = copus_on(processor);
  system.weight_bytes = 4;
  set_optimizer(system, optimizer);
  system.activation_bytes = 4;
  system.logit_bytes = 20;
  // Flash attention does not support fp32. So scores, probabilities, their gradients and intermediate results are
  // stored as whole tensors.
  if (processor == Processor::gpu) system.memory.working.score_bytes = 6 * 4;
  return system;
}

double inner_elements(const LayerTensors& tensors, const BlockDescription& block, int64_t tensor_parallel) {
  const double inputs = block.input_width(tensor_parallel), output = block.output_width(tensor_parallel);
  switch (block.kind) {
    case BlockKind::attention:
      return tensors.query * output + tensors.key_value * (inputs - output) / 2;
    case BlockKind::feed_forward:
      return tensors.feed_forward * output + tensors.feed_forward_inputs * inputs;
  }
  fail_check("known block", __FILE__, __LINE__, "");
}

double stalled_seconds(const TrainingSystem& system, const Configuration& configuration) {
  const int64_t in_turn = std::min<int64_t>(configuration.strategy.pipeline_parallel, 4);
  return static_cast<double>(configuration.num_microbatches() * in_turn) * system.stall_seconds;
}

std::optional<CountedEnds> even_ends(int64_t num_layers, int64_t num_stages) {
  for (const CountedEnds ends : {CountedEnds{}, {.head = true}, {.embedding = true}, {true, true}}) {
    if ((num_layers + ends.layers()) % num_stages == 0) return ends;
  }
  return std::nullopt;
}

std::vector<LayerRange> cut_stages(const TrainingSystem& system, const ModelDescription& model, int64_t sequence_length,
                                   int64_t num_stages) {
  switch (system.stage_cut) {
    case StageCut::balanced:
      return balance_stages(model, sequence_length, num_stages);
    case StageCut::thresholds:
      return cut_by_thresholds(model, num_stages);
    case StageCut::equal:
      return cut_equally(model, num_stages);
    case StageCut::even:
      return cut_evenly(model, num_stages);
    case StageCut::ends_count:
      return cut_with_ends(model, num_stages);
  }
  fail_check("known stage cut", __FILE__, __LINE__, "");
}

}  // namespace copus
