#include "copus/placement/sharding.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <string_view>

#include "copus/base/error.h"

namespace copus {
namespace {

// Returns the module that a parameter belongs to: "q_proj" of "model.layers.3.self_attn.q_proj.weight".
std::string_view module_of(std::string_view name) {
  const std::string_view path = name.substr(0, name.rfind('.'));
  return path.substr(path.rfind('.') + 1);
}

bool is_in(std::string_view module, std::initializer_list<std::string_view> modules) {
  return std::find(modules.begin(), modules.end(), module) != modules.end();
}

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
  const std::string_view module = module_of(parameter.name);
  const bool is_embedding = parameter.kind == ParameterKind::embedding;

  Sharding sharding;
  if (parameter.kind == ParameterKind::norm) {
    sharding.partial = placement.strategy.sequence_parallel && ranks > 1;
  } else if (is_in(module, {"k_proj", "v_proj"})) {
    sharding.parts = std::min(ranks, model.num_kv_heads);
    sharding.partial = ranks > sharding.parts;
  } else if (is_in(module, {"o_proj", "down_proj"})) {
    sharding.axis = 1;
    sharding.parts = ranks;
  } else {
    COPUS_CHECK(is_in(module, {"embed_tokens", "lm_head", "q_proj", "gate_proj", "up_proj"}), parameter.name);
    sharding.parts = ranks;
  }
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

LocalElements count_local_elements(const ModelDescription& model, int64_t tensor_parallel, bool sequence_parallel) {
  ModelDescription one_layer = model;
  one_layer.num_layers = 1;
  Placement placement = whole_model(one_layer);
  placement.strategy.tensor_parallel = tensor_parallel;
  placement.strategy.sequence_parallel = sequence_parallel;
  placement.here.tensor = tensor_parallel - 1;  // the last ranks hold the remainder of an uneven cut
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
