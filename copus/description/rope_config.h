// The rotary embeddings of a config.json. Only this room's sources include this header.
#pragma once

#include <nlohmann/json.hpp>

#include "copus/description/config_fields.h"
#include "copus/description/model_description.h"

namespace copus {

// Reads bases and scaling, in the style of transformers 4 or 5. by_layer_type: whether rope_parameters holds an object
// for each type of layer.
void parse_rope(const Fields& config, double default_theta, bool by_layer_type, ModelDescription& model);

// Returns `rope_scaling`, or an object of `rope_parameters` without its base.
nlohmann::json rope_object(const ModelDescription& model);

}  // namespace copus
