// The notation of configurations: "d=2,t=1,p=2,B=32,b=4" (data, tensor and pipeline parallelism, global batch,
// micro-batch). Options that differ from their defaults follow, such as v=2, schedule=interleaved, sp=1, zero=1 and
// recompute=full. Parts may have any order. The output of to_string parses to an equal value.
#pragma once

#include <bitset>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/configuration_fields.h"

namespace copus {

// Writes the value of a field: a name, a number, 1 or 0.
template <class Value>
std::string value_text(const Value& value) {
  if constexpr (HasNames<Value>) {
    return std::string(to_string(value));
  } else {
    return std::to_string(static_cast<int64_t>(value));
  }
}

// Named fields of a configuration: those that a user wrote, or those in which two configurations differ.
struct ConfigurationChange {
  Configuration values;                         // unnamed fields have their defaults
  std::bitset<num_configuration_fields> named;  // by ConfigurationField::index

  bool names(std::string_view symbol) const;
  bool operator==(const ConfigurationChange&) const = default;
};

// Throws UserError for a part that is not NAME=VALUE, is unknown or repeated, or has a value out of range.
ConfigurationChange parse_configuration_change(std::string_view text);

// Parses a complete configuration: d, t, p, B and b, and options, whose absence means the default. Throws UserError
// like parse_configuration_change, or if d, t, p, B or b is missing.
Configuration parse_configuration(std::string_view text);
// Like parse_configuration(), without batches.
ParallelStrategy parse_strategy(std::string_view text);

// Writes all named fields, including fields that have their default values.
std::string to_string(const ConfigurationChange& change);

// Writes a text that parses to `configuration` if omitted options have their values in `otherwise`.
std::string to_string(const Configuration& configuration, const Configuration& otherwise);

// Describes all degrees, batches and options, for help: "d (data parallelism), t (tensor parallelism), ...".
std::string configuration_parts();

// Returns the rows of a table: the symbols, then one row per configuration. An option has a column only if some
// configuration differs from its default, which is written "-".
std::vector<std::vector<std::string>> configuration_rows(const std::vector<Configuration>& configurations);

// Changes the fields that `change` names. All other fields stay, unless the new layout makes them impossible or
// meaningless. With p=1 the schedule becomes 1f1b with one stage per rank. With t=1 there is no sequence parallelism.
// With d=1 there is no ZeRO, and so neither replicas nor resharding.
Configuration apply(const ConfigurationChange& change, const Configuration& configuration);

// Returns whether `configuration` has all named values.
bool matches(const ConfigurationChange& change, const Configuration& configuration);

// Describes all differences, always with d, t and p together: "d=1,t=2,p=2,B=16 -> d=4,t=1,p=1,B=32". Applying the part
// after the arrow to `from` gives `to`. Empty if there are no differences.
std::string describe_change(const Configuration& from, const Configuration& to);

}  // namespace copus
