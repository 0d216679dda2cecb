// Writes and reads known step times as JSON, in profiles and in the log of decisions. Private to the .cpp files of this
// directory: nlohmann/json stays out of every header that others include.
#pragma once

#include <nlohmann/json.hpp>

#include "copus/performance/measured/learning.h"

namespace copus {

// Writes a list of measured configurations. Corrections are omitted, because they follow from the measurements.
nlohmann::ordered_json to_json(const Knowledge& knowledge);
// Reads it back. Throws UserError that says what is wrong.
Knowledge knowledge_from_json(const nlohmann::json& json);

}  // namespace copus
