// A script: the switches that a run is to make, one JSON object a line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

struct ScriptedSwitch {
  int64_t after_step = 0;  // the step boundary
  Configuration configuration;
  double critical_batch = 0;  // that the learning rate counts with from there on; 0: not known
  bool operator==(const ScriptedSwitch&) const = default;
};

// Lines of {"after_step": N, "configuration": {...}, "critical_batch": x} (strategy/configuration_json.h), the last
// optional, in ascending order of after_step. A run's decisions.jsonl is a script too: of its lines, which have a field
// "event", the switches that moved count; there the configuration may be called "to". Empty lines do not count.
// `source` names the file in messages. Throws UserError naming the line.
std::vector<ScriptedSwitch> parse_script(std::string_view text, const std::string& source);

}  // namespace copus
