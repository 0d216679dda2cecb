// The one way in which people and files write and read configurations: "d=2,t=1,p=2,B=32,b=4". These are data, tensor
// and pipeline parallelism, global batch and micro-batch; options such as v=2, schedule=interleaved, sp=1, zero=1 and
// recompute=full follow where they are not as they are by default. The order of parts is free. What to_string writes is
// read back.
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

// Some fields of a configuration: what a person has named, or what differs between two.
struct ConfigurationChange {
  Configuration values;                         // of fields that are not named, the defaults
  std::bitset<num_configuration_fields> named;  // which fields are, by ConfigurationField::index

  bool names(std::string_view symbol) const;
  bool operator==(const ConfigurationChange&) const = default;
};

// Throws UserError for a part that is not NAME=VALUE, not known, given twice, or out of range.
ConfigurationChange parse_configuration_change(std::string_view text);

// Reads a whole configuration, as to_string writes it: d, t, p, B and b, and the options that are not as they are by
// default. Throws UserError as above, and where one of these five is missing.
Configuration parse_configuration(std::string_view text);
// The same without batches.
ParallelStrategy parse_strategy(std::string_view text);

// Writes all that is named, default or not.
std::string to_string(const ConfigurationChange& change);

// Writes what reads back as `configuration` where options that are left out are as in `otherwise`.
std::string to_string(const Configuration& configuration, const Configuration& otherwise);

// The parts that there are: "d (data parallelism), t (tensor parallelism), ...".
std::string configuration_parts();

// Returns configurations as rows of a table, behind a row of symbols. An option has a column only where some row is not
// as it is by default; "-" stands for the default.
std::vector<std::vector<std::string>> configuration_rows(const std::vector<Configuration>& configurations);

// Changes what is named. The rest stays, unless the new layout makes it impossible or meaningless: without a pipeline
// the schedule is 1f1b with one stage a rank, without tensor parallelism there is no sequence parallelism, and with one
// data-parallel rank no ZeRO; copies and gathering belong to ZeRO.
Configuration apply(const ConfigurationChange& change, const Configuration& configuration);

// Whether all that is named is so in `configuration`.
bool matches(const ConfigurationChange& change, const Configuration& configuration);

// Tells all that differs, with d, t and p together: "d=1,t=2,p=2,B=16 -> d=4,t=1,p=1,B=32". What stands behind the
// arrow, applied to `from`, makes `to`. Empty where nothing differs.
std::string describe_change(const Configuration& from, const Configuration& to);

}  // namespace copus
