// The notation for configurations in files and for people: "d=2,t=1,p=2,B=32,b=4". These are data, tensor and pipeline
// parallelism, global batch and micro-batch. Options such as v=2, schedule=interleaved, sp=1, zero=1 and recompute=full
// follow if they differ from their defaults. Parts may have any order. The output of to_string reads back equal.
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

// Some fields of a configuration: those that a person has named, or the differences between two configurations.
struct ConfigurationChange {
  Configuration values;                         // fields that are not named have their defaults
  std::bitset<num_configuration_fields> named;  // which fields are named, by ConfigurationField::index

  bool names(std::string_view symbol) const;
  bool operator==(const ConfigurationChange&) const = default;
};

// Throws UserError for a part that is not NAME=VALUE, unknown, repeated, or out of range.
ConfigurationChange parse_configuration_change(std::string_view text);

// Reads a complete configuration as to_string writes it: d, t, p, B and b, and the options that differ from their
// defaults. Throws UserError as above, and if one of these five is missing.
Configuration parse_configuration(std::string_view text);
// Like parse_configuration(), without batches.
ParallelStrategy parse_strategy(std::string_view text);

// Writes all named fields, including those at their defaults.
std::string to_string(const ConfigurationChange& change);

// Writes a text that reads back as `configuration` if omitted options are taken from `otherwise`.
std::string to_string(const Configuration& configuration, const Configuration& otherwise);

// Describes all parts: "d (data parallelism), t (tensor parallelism), ...".
std::string configuration_parts();

// Returns configurations as rows of a table, after a row of symbols. An option has a column only if some row differs
// from the default; "-" stands for the default.
std::vector<std::vector<std::string>> configuration_rows(const std::vector<Configuration>& configurations);

// Changes the named fields. The other fields stay, unless the new layout makes them impossible or meaningless. Without
// a pipeline the schedule becomes 1f1b with one stage per rank. Without tensor parallelism there is no sequence
// parallelism. With one data-parallel rank there is no ZeRO, and so no copies and no gathering.
Configuration apply(const ConfigurationChange& change, const Configuration& configuration);

// Whether all named fields have these values in `configuration`.
bool matches(const ConfigurationChange& change, const Configuration& configuration);

// Describes all differences, with d, t and p always together: "d=1,t=2,p=2,B=16 -> d=4,t=1,p=1,B=32". The part after
// the arrow, applied to `from`, gives `to`. Empty without differences.
std::string describe_change(const Configuration& from, const Configuration& to);

}  // namespace copus
