// The one way in which people write and read configurations: "d=2,t=1,p=2,B=32,b=4" with data, tensor and pipeline
// parallelism, global batch and micro-batch, and where they are not as they are by default v=2, schedule=interleaved,
// sp=1, zero=1 and recompute=full. The order of parts is free. What to_string writes is read back.
#pragma once

#include <bitset>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/configuration_fields.h"

namespace copus {

// Some fields of a configuration: what a person has named, or what differs between two.
struct ConfigurationChange {
  Configuration values;                         // those of fields that are not named are as they are by default
  std::bitset<num_configuration_fields> named;  // by ConfigurationField::index

  bool names(std::string_view symbol) const;
  bool operator==(const ConfigurationChange&) const = default;
};

// Throws UserError for a part that is not NAME=VALUE, or that is not known, given twice or out of range. A spelling of
// earlier versions is refused with what to write now.
ConfigurationChange parse_configuration_change(std::string_view text);

// All that is named, values by default too.
std::string to_string(const ConfigurationChange& change);

// With what is needed to read it back where options that are left out are as in `otherwise`.
std::string to_string(const Configuration& configuration, const Configuration& otherwise);

// What an earlier version's word for a part, such as "4x1x1", "TP2", "mb8" or "Bm=8", is now: "d=4,t=1,p=1". Empty for
// any other word.
std::optional<std::string> todays_spelling(std::string_view word);

// The parts that there are: "d (data parallelism), t (tensor parallelism), ...".
std::string configuration_parts();

// For tables: the symbols B, b, d, t, p, v, ..., and the values below them, "-" for an option that is as it is by
// default.
std::vector<std::string> configuration_columns();
std::vector<std::string> configuration_cells(const Configuration& configuration);

// What is not named stays, but for what the layout makes impossible or meaningless: without a pipeline the schedule is
// 1f1b with one stage a rank, without tensor parallelism there is no sequence parallelism, with one data-parallel rank
// no ZeRO.
Configuration apply(const ConfigurationChange& change, const Configuration& configuration);

// Whether all that is named is so in `configuration`.
bool matches(const ConfigurationChange& change, const Configuration& configuration);

// All that differs: "d=1,t=2,p=2,B=16 -> d=4,t=1,p=1,B=32". d, t and p are named together. Applied to `from`, what
// stands behind the arrow makes `to`. Empty where nothing differs.
std::string describe_change(const Configuration& from, const Configuration& to);

}  // namespace copus
