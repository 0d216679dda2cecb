// The rotary embeddings of a config.json. Only this room's sources include this header.
#pragma once

#include <nlohmann/json.hpp>

#include "copus/description/config_fields.h"
#include "copus/description/model_description.h"

namespace copus {

// The rotary embeddings that config.json of an architecture may describe.
struct RopeStyle {
  bool by_layer_type = false;                 // whether rope_parameters holds an object for each type of layer
  bool is_phi3 = false;                       // LongRoPE is the only scaling, and goes by older names too
  bool may_be_partial = false;                // with partial_rotary_factor
  const char* sliding_theta_field = nullptr;  // of the base of sliding layers, beside rope_parameters
};

// Reads bases, scaling and the rotating fraction, in the style of transformers 4 or 5. The model has the defaults of
// its architecture.
void parse_rope(const Fields& config, const RopeStyle& style, ModelDescription& model);

// Returns `rope_scaling`, or an object of `rope_parameters` without its base.
nlohmann::json rope_object(const ModelDescription& model);

}  // namespace copus
