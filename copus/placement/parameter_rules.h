// How each kind of parameter is sharded over tensor-parallel ranks, and which parameters are stored back to back in a
// bucket. No other file of this room depends on the names of modules. Only this room's sources include this header.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "copus/base/error.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

struct ParameterRule {
  std::string_view module;
  int64_t dimension = 0;  // the sharded one
  // The number of heads, rows or columns in the dimension, which is the largest number of parts. Null: the parameter is
  // never sharded.
  int64_t ModelDescription::* units = nullptr;
  // Linear layers with the same name here read the same input: their weights are stored back to back, and so are their
  // biases.
  std::string_view input = {};
  // Each rank uses the parameter only on its own heads, so its gradients differ between tensor-parallel ranks.
  bool by_head = false;

  // Whether `model` has the parameter for each of the units. A norm of single heads has one parameter for all heads.
  bool is_sharded(const ModelDescription& model) const {
    return units != nullptr && !(by_head && model.qk_norm == QkNorm::head);
  }
  // Returns the number of parts on `ranks` tensor-parallel ranks. Each part is on ranks / parts neighbouring ranks.
  int64_t parts(const ModelDescription& model, int64_t ranks) const {
    return !is_sharded(model) ? 1 : std::min(ranks, model.*units);
  }
};

inline constexpr std::array<ParameterRule, 11> parameter_rules = {{
    {"embed_tokens", 0, &ModelDescription::vocab_size},
    {"q_proj", 0, &ModelDescription::num_heads, "attention"},
    {"k_proj", 0, &ModelDescription::num_kv_heads, "attention"},
    {"v_proj", 0, &ModelDescription::num_kv_heads, "attention"},
    {"o_proj", 1, &ModelDescription::num_heads},
    {"gate_proj", 0, &ModelDescription::intermediate_size, "feed-forward"},
    {"up_proj", 0, &ModelDescription::intermediate_size, "feed-forward"},
    {"down_proj", 1, &ModelDescription::intermediate_size},
    {"lm_head", 0, &ModelDescription::vocab_size},
    {.module = "q_norm", .units = &ModelDescription::num_heads, .by_head = true},
    {.module = "k_norm", .units = &ModelDescription::num_kv_heads, .by_head = true},
}};

// Returns the rule of a parameter. Throws InternalError for an unknown module. If the weight of a linear layer is
// sharded by columns, its bias is added to the sum of the ranks' terms, and is never sharded.
inline ParameterRule rule_of(const ParameterInfo& parameter) {
  // The module is "q_proj" of "model.layers.3.self_attn.q_proj.weight".
  const std::string_view name = parameter.name, path = name.substr(0, name.rfind('.'));
  const std::string_view module = path.substr(path.rfind('.') + 1);
  const auto* const found = std::ranges::find(parameter_rules, module, &ParameterRule::module);
  if (found != parameter_rules.end()) {
    return parameter.kind == ParameterKind::bias && found->dimension == 1 ? ParameterRule{module} : *found;
  }
  const bool is_whole = parameter.kind == ParameterKind::norm || parameter.kind == ParameterKind::norm_bias ||
                        module == "embed_positions";
  COPUS_CHECK(is_whole, parameter.name);
  return {};
}

// Returns whether tensor-parallel ranks that hold the same part of a parameter compute different gradients for it. The
// gradients of norms differ if each rank sees its own rows (sequence parallelism) or its own heads. The gradients of
// sharded parameters differ because each rank sees its own query heads. The gradients of unsharded biases and of
// positions are equal: all ranks see every row.
inline bool replicas_differ(const ParameterInfo& parameter, const ParallelStrategy& strategy) {
  const ParameterRule rule = rule_of(parameter);
  const bool is_of_norm = parameter.kind == ParameterKind::norm || parameter.kind == ParameterKind::norm_bias;
  if (is_of_norm) return strategy.sequence_parallel || rule.by_head;
  return rule.units != nullptr;
}

// Whether two consecutive parameters of a bucket are stored back to back.
inline bool are_joined(const ParameterInfo& one, const ParameterInfo& other) {
  if (one.kind != other.kind) return false;
  const std::string_view input = rule_of(one).input;
  return !input.empty() && input == rule_of(other).input;
}

}  // namespace copus
