#include "copus/performance/block_elements.h"

#include <algorithm>

#include "copus/description/layer_blocks.h"
#include "copus/placement/placed_tensors.h"

namespace copus {

namespace {

BlockElements count_blocks(ModelDescription model, const ParallelStrategy& strategy) {
  const LayerKinds kinds(model);
  model.num_layers = kinds.examples.back() + 1;  // the first layers include every kind
  ParallelStrategy sample{.tensor_parallel = strategy.tensor_parallel,
                          .pipeline_parallel = std::min<int64_t>(strategy.pipeline_parallel, 2),
                          .sequence_parallel = strategy.sequence_parallel};
  std::vector<LayerRange> stages(sample.num_stages(), {model.num_layers, model.num_layers});
  stages.front() = {0, model.num_layers};
  // For programs other than Copus only the optimizer's bytes per parameter are known. One slot stands for its tensors.
  const StateRecipe recipe{.slots = {{"state"}}};
  BlockElements elements{.layers = std::vector<LayerElements>(kinds.examples.size()), .embedding = {}, .head = {}};
  for (const PlacedTensor& tensor : place_state(model, sample, stages, recipe).tensors) {
    const int64_t layer = tensor.parameter.layer;
    const int64_t kind = layer < 0 ? -1 : kinds.of_layer[layer];
    if (layer >= 0 && kinds.examples[kind] != layer) continue;
    const bool is_embedding = tensor.parameter.kind == ParameterKind::embedding && !tensor.tied_copy;
    RoleElements& block = layer >= 0     ? static_cast<RoleElements&>(elements.layers[kind])
                          : is_embedding ? elements.embedding
                                         : elements.head;
    // In uneven splits the last ranks hold most.
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
    if (layer < 0 || !tensor.along(MeshAxis::tensor).partial) continue;
    elements.layers[kind].partial[tensor.tensor_replicas()] += held;
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
