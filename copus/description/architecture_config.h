// The parts of config.json that belong to one architecture: a table with one entry per architecture. Only this room's
// sources include this header.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "copus/description/config_fields.h"
#include "copus/description/model_description.h"
#include "copus/description/rope_config.h"

namespace copus {

// Upper limits of sizes. They are generous, and keep the number of parameters far below 2^63.
inline constexpr int64_t max_vocab_size = std::numeric_limits<int32_t>::max();
inline constexpr int64_t max_width = int64_t{1} << 20;
inline constexpr int64_t max_intermediate_size = int64_t{1} << 24;
inline constexpr int64_t max_layers = int64_t{1} << 12;
inline constexpr int64_t max_heads = int64_t{1} << 16;
inline constexpr int64_t max_head_dim = int64_t{1} << 12;

// A field of dropout, and transformers' default.
struct DropoutField {
  const char* name;
  double fallback = 0;
};

// The names of a feed-forward's activation.
struct ActivationNames {
  const char* field = "hidden_act";
  std::vector<std::string_view> names = {"silu"};  // all mean the same; the first is the default
};

struct ArchitectureConfig {
  // The properties that all models of the architecture share, and transformers' defaults of absent fields. A
  // num_key_value_heads of 0 means as many as num_attention_heads. A head_dim of 0 means hidden_size /
  // num_attention_heads.
  ModelDescription defaults = {};
  // Fields that not all architectures have (value_without).
  std::vector<std::string_view> fields = {};
  std::vector<DropoutField> dropout = {{"attention_dropout"}};
  ActivationNames activation = {};
  RopeStyle rope = {};
  bool heads_divide_stream = false;        // num_attention_heads must divide hidden_size even if head_dim is given
  bool derives_intermediate_size = false;  // intermediate_size may be absent; `read` sets it
  const char* interval_field = nullptr;    // of full_attention_interval, beside layer_types
  std::span<const FieldAlias> aliases = {};
  // Reads what other architectures compute alike in all models, before the common fields.
  void (*read_parts)(const Fields& config, ModelDescription& model) = nullptr;
  // Reads the fields that no other architecture has, after the common ones.
  void (*read)(const Fields& config, ModelDescription& model) = nullptr;
  // Changes the common fields into what the architecture's class reads.
  void (*write)(const ModelDescription& model, nlohmann::json& config) = nullptr;

  // Whether the models have such a field.
  bool has(std::string_view field) const;
  // Whether config.json may give each layer a type of attention.
  bool has_layer_types() const { return has("full_attention_interval"); }
};

const ArchitectureConfig& config_of(Architecture architecture);

}  // namespace copus
