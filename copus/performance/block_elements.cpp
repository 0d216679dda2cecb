#include "copus/performance/block_elements.h"

#include <algorithm>

#include "copus/placement/placed_tensors.h"

namespace copus {

namespace {

BlockElements count_blocks(ModelDescription model, const ParallelStrategy& strategy) {
  model.num_layers = 1;
  ParallelStrategy sample{.tensor_parallel = strategy.tensor_parallel,
                          .pipeline_parallel = std::min<int64_t>(strategy.pipeline_parallel, 2),
                          .sequence_parallel = strategy.sequence_parallel};
  std::vector<LayerRange> stages(sample.num_stages(), {1, 1});
  stages.front() = {0, 1};
  // A program's description gives the bytes of its optimizer's state per parameter, not the tensors.
  const StateRecipe recipe{.slots = {{"state"}}};
  BlockElements elements;
  for (const PlacedTensor& tensor : place_state(model, sample, stages, recipe).tensors) {
    const bool is_embedding = tensor.parameter.kind == ParameterKind::embedding && !tensor.tied_copy;
    RoleElements& block = tensor.parameter.layer >= 0 ? elements.layer
                          : is_embedding              ? elements.embedding
                                                      : elements.head;
    // If the split is uneven, the last ranks hold the remainder.
    const auto held = static_cast<double>(tensor.num_elements(sample.tensor_parallel - 1));
    switch (tensor.role) {
      case TensorRole::weight:
        block.weights += held;
        break;
      case TensorRole::gradient:
        block.gradients += held;
        break;
      case TensorRole::optimizer_slot:
        block.optimizer += held;
        break;
    }
    if (tensor.parameter.layer < 0 || !tensor.along(MeshAxis::tensor).partial) continue;
    elements.partial[tensor.tensor_replicas()] += held;
  }
  return elements;
}

}  // namespace

const BlockElements& BlockCounter::of(const ParallelStrategy& strategy) {
  const auto [found, is_new] =
      counted_.try_emplace({strategy.tensor_parallel, strategy.sequence_parallel, strategy.pipeline_parallel > 1});
  if (is_new) found->second = count_blocks(model_, strategy);
  return found->second;
}

}  // namespace copus
