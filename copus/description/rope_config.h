// The rotary embeddings of a config.json. Only this room's sources include this header.
#pragma once

#include <nlohmann/json.hpp>

#include "copus/description/config_fields.h"
#include "copus/description/model_description.h"

namespace copus {

// The rotary embeddings that config.json of an architecture may describe.
struct RopeStyle {
  double theta;          // transformers' default
  double sliding_theta;  // transformers' default for sliding layers, if layers have types
  bool by_layer_type;    // whether rope_parameters holds an object for each type of layer
  bool may_be_scaled;    // by every RopeType
  bool may_be_partial;   // with partial_rotary_factor
};

// Reads bases, scaling and the rotating fraction, in the style of transformers 4 or 5.
void parse_rope(const Fields& config, const RopeStyle& style, ModelDescription& model);

// Returns `rope_scaling`, or an object of `rope_parameters` without its base.
nlohmann::json rope_object(const ModelDescription& model);

}  // namespace copus
