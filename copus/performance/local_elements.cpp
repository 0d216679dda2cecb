#include "copus/performance/local_elements.h"

#include "copus/placement/sharding.h"

namespace copus {

LocalElements count_local_elements(const ModelDescription& model, int64_t tensor_parallel, bool sequence_parallel) {
  ModelDescription one_layer = model;
  one_layer.num_layers = 1;
  Placement placement = whole_model(one_layer);
  placement.strategy.tensor_parallel = tensor_parallel;
  placement.strategy.sequence_parallel = sequence_parallel;
  placement.here.tensor = tensor_parallel - 1;  // what is left over of an uneven cut goes to the last ranks
  LocalElements elements;
  for (const LocalParameter& held : list_local_parameters(one_layer, placement)) {
    const bool is_embedding = held.info.kind == ParameterKind::embedding && !held.tied_copy;
    const auto number = static_cast<double>(held.box.num_elements());
    (held.info.layer >= 0 ? elements.layer : is_embedding ? elements.embedding : elements.head) += number;
    if (held.info.layer >= 0 && held.sharding.partial) elements.partial[held.sharding.replicas] += number;
  }
  return elements;
}

}  // namespace copus
