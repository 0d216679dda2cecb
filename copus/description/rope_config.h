// The rotary embeddings of a config.json. Only this room's sources include this header.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "copus/description/config_fields.h"
#include "copus/description/model_description.h"

namespace copus {

// How an architecture's config.json describes rotary embeddings.
struct RopeStyle {
  bool by_layer_type = false;                 // whether rope_parameters may have an object for each layer type
  bool is_phi3 = false;                       // whether LongRoPE, also under older names, is the only scaling
  bool may_be_partial = false;                // whether there may be a partial_rotary_factor
  const char* sliding_theta_field = nullptr;  // the base of sliding layers, outside rope_parameters
};

// Reads bases, scaling and rotating fraction, in the style of transformers 4 or 5, into a model that has its
// architecture's defaults.
void parse_rope(const Fields& config, const RopeStyle& style, ModelDescription& model);

// Returns the type that a `rope_scaling` or `rope_parameters` object names, in either style; "default" scales nothing.
std::string rope_type_of(const Fields& rope);

// Returns the object that describes the model's scaling, without the base, for `rope_scaling` or `rope_parameters`.
nlohmann::json rope_object(const ModelDescription& model);

}  // namespace copus
