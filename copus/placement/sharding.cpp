#include "copus/placement/sharding.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "copus/base/error.h"
#include "copus/placement/parameter_rules.h"

namespace copus {
namespace {

int64_t stage_of(const Placement& placement, const ParameterInfo& parameter, bool is_embedding) {
  if (is_embedding) return 0;
  const auto& stages = placement.stages;
  if (parameter.layer < 0) return std::ssize(stages) - 1;
  const auto holder = std::find_if(stages.begin(), stages.end(),
                                   [&](const LayerRange& layers) { return parameter.layer < layers.end; });
  COPUS_CHECK(holder != stages.end(), parameter.name, " lies on none of ", stages.size(), " stages");
  return holder - stages.begin();
}

}  // namespace

int64_t Box::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Placement whole_model(const ModelDescription& model) {
  return {.strategy = {}, .here = {}, .stages = {{0, model.num_layers}}};
}

Placement place(const ModelDescription& model, const ParallelStrategy& strategy, int64_t sequence_length,
                int64_t rank) {
  return {.strategy = strategy,
          .here = Mesh(strategy).coordinates(rank),
          .stages = balance_stages(model, sequence_length, strategy.num_stages())};
}

int64_t part_begin(int64_t total, int64_t parts, int64_t part) { return total * part / parts; }

Sharding shard(const ModelDescription& model, const Placement& placement, const ParameterInfo& parameter) {
  const int64_t ranks = placement.strategy.tensor_parallel;
  const bool is_embedding = parameter.kind == ParameterKind::embedding;

  Sharding sharding{.axis = parameter.split.dimension, .parts = parameter.split.parts(ranks)};
  sharding.partial = ranks > sharding.parts && replicas_differ(parameter, placement.strategy);
  COPUS_CHECK(ranks % sharding.parts == 0, parameter.name, " in ", sharding.parts, " parts on ", ranks, " ranks");
  sharding.replicas = ranks / sharding.parts;
  sharding.stage = stage_of(placement, parameter, is_embedding);
  sharding.tied = is_embedding && model.tie_word_embeddings;
  return sharding;
}

Box local_box(const ParameterInfo& parameter, const Sharding& sharding, int64_t tensor_rank) {
  Box box{.begin = std::vector<int64_t>(parameter.shape.size(), 0), .shape = parameter.shape};
  const int64_t total = parameter.shape.at(sharding.axis);
  const int64_t part = sharding.part_of(tensor_rank);
  COPUS_CHECK(part >= 0 && part < sharding.parts, "tensor-parallel rank ", tensor_rank, " of ", parameter.name);
  box.begin[sharding.axis] = part_begin(total, sharding.parts, part);
  box.shape[sharding.axis] = part_begin(total, sharding.parts, part + 1) - box.begin[sharding.axis];
  return box;
}

std::vector<LocalParameter> list_local_parameters(const ModelDescription& model, const Placement& placement) {
  const std::vector<ParameterInfo> parameters = list_parameters(model);
  std::vector<LocalParameter> held;
  for (int64_t chunk = 0; chunk < placement.strategy.virtual_stages; ++chunk) {
    const int64_t stage = chunk * placement.strategy.pipeline_parallel + placement.here.pipeline;
    std::vector<LocalParameter> tied_copies;
    for (const ParameterInfo& parameter : parameters) {
      const Sharding sharding = shard(model, placement, parameter);
      const Box box = local_box(parameter, sharding, placement.here.tensor);
      if (sharding.stage == stage) held.push_back({parameter, sharding, box, chunk, /*tied_copy=*/false});
      if (sharding.tied && stage == placement.strategy.num_stages() - 1) {
        tied_copies.push_back({parameter, sharding, box, chunk, /*tied_copy=*/true});
      }
    }
    held.insert(held.end(), tied_copies.begin(), tied_copies.end());
  }
  return held;
}

}  // namespace copus
