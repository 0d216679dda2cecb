// The properties of config.json that belong to one architecture: a table with one entry per architecture. Only this
// room's sources include this header.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "copus/description/config_fields.h"
#include "copus/description/model_description.h"
#include "copus/description/rope_config.h"

namespace copus {

// Upper limits of sizes, which keep the number of parameters far below 2^63.
inline constexpr int64_t max_vocab_size = std::numeric_limits<int32_t>::max();
inline constexpr int64_t max_width = int64_t{1} << 20;
inline constexpr int64_t max_intermediate_size = int64_t{1} << 24;
inline constexpr int64_t max_layers = int64_t{1} << 12;
inline constexpr int64_t max_heads = int64_t{1} << 16;
inline constexpr int64_t max_head_dim = int64_t{1} << 12;

// A dropout field and its default in transformers.
struct DropoutField {
  const char* name;
  double fallback = 0;
};

// The field and names of the feed-forward's activation.
struct ActivationNames {
  const char* field = "hidden_act";
  std::vector<std::string_view> names = {"silu"};  // synonyms; the first is the default
};

struct ArchitectureConfig {
  // Properties of all models of the architecture, and transformers' defaults of absent fields. Here 0 as
  // num_key_value_heads stands for num_attention_heads, and 0 as head_dim for hidden_size / num_attention_heads.
  ModelDescription defaults = {};
  // The architecture's fields that not all architectures have (architectures_with).
  std::vector<std::string_view> fields = {};
  std::vector<DropoutField> dropout = {{"attention_dropout"}};
  ActivationNames activation = {};
  RopeStyle rope = {};
  bool heads_divide_stream = false;        // num_attention_heads must divide hidden_size even if head_dim is given
  bool derives_intermediate_size = false;  // intermediate_size may be absent; `read` sets it
  const char* interval_field = nullptr;    // config.json's name of full_attention_interval, if any
  std::span<const FieldAlias> aliases = {};
  // Reads properties that are fixed in other architectures; called before the common fields are read.
  void (*read_parts)(const Fields& config, ModelDescription& model) = nullptr;
  // Reads the architecture's own fields; called after the common fields are read.
  void (*read)(const Fields& config, ModelDescription& model) = nullptr;
  // Changes the common fields into those that the architecture's class in transformers reads.
  void (*write)(const ModelDescription& model, nlohmann::json& config) = nullptr;

  // Returns whether `fields` contains the field.
  bool has(std::string_view field) const;
  // Returns whether config.json may give each layer a type of attention.
  bool has_layer_types() const { return has("full_attention_interval"); }
};

const ArchitectureConfig& config_of(Architecture architecture);

}  // namespace copus
