// The list of a configuration's fields, with their names and ranges. All code that reads, prints, sends or hashes a
// configuration iterates over this list. To add a field: add a member to ParallelStrategy or Configuration, add a line
// here, implement what the field does, and document it in docs/configuration.md.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "copus/base/numbers/range.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

struct ConfigurationField {
  enum class Role { degree, option, batch };  // of an axis (mesh_axes); how ranks work; numbers of sequences

  size_t index;                   // in the order of visit_configuration
  const char* symbol;             // short name: the d of "d=2,t=1,p=2,B=32,b=4"
  const char* name;               // its key in `section` of a run's configuration
  const char* section;            // "parallel" or "train"
  const char* words;              // its name within a sentence
  Role role;                      // to_string omits options at their defaults
  Range<int64_t> range = {0, 1};  // allowed values; booleans are written as 0 or 1
};

// The limit is the number of GPUs in the largest cluster that a plan considers. With it, a product of all degrees and a
// batch stays far below 2^63.
inline constexpr Range<int64_t> allowed_degrees{1, int64_t{1} << 17};
inline constexpr Range<int64_t> allowed_zero_stages{0, 3};
// Far more sequences than anyone needs. The tokens of a step (sequence_length < 2^31) stay far below 2^63.
inline constexpr Range<int64_t> allowed_batches{1, int64_t{1} << 24};

// Calls visit(field, values...) for each field, with its value in each of the strategies `of`. Adding a field changes
// no existing file or hash, because both omit defaults.
template <class Visitor, class... Strategies>
constexpr void visit_strategy(Visitor&& visit, Strategies&... of) {
  using Field = ConfigurationField;
  using enum Field::Role;
  size_t n = 0;
  for (const MeshAxisInfo& axis : mesh_axes) {
    visit(Field{n++, axis.symbol, axis.key, "parallel", axis.words, degree, allowed_degrees}, of.*axis.degree...);
  }
  visit(Field{n++, "v", "virtual_stages", "parallel", "the number of virtual stages", option, allowed_degrees},
        of.virtual_stages...);
  visit(Field{n++, "schedule", "schedule", "parallel", "the pipeline schedule", option}, of.schedule...);
  visit(Field{n++, "sp", "sequence_parallel", "parallel", "sequence parallelism", option}, of.sequence_parallel...);
  visit(Field{n++, "zero", "zero_stage", "parallel", "the ZeRO stage", option, allowed_zero_stages}, of.zero_stage...);
  visit(Field{n++, "recompute", "recompute", "train", "recomputation", option}, of.recompute...);
  visit(
      Field{n++, "reshard", "reshard_after_forward", "parallel", "whether ZeRO-3 gathers again after forward", option},
      of.reshard_after_forward...);
  visit(Field{n++, "replicas", "zero_replicas", "parallel", "the number of copies that ZeRO shares out", option,
              allowed_degrees},
        of.zero_replicas...);
}

inline constexpr size_t num_strategy_fields = [] {
  const ParallelStrategy strategy;
  size_t count = 0;
  visit_strategy([&](const ConfigurationField&, const auto&) { ++count; }, strategy);
  return count;
}();

// Like visit_strategy, for the batches of a Configuration or of any type with the same members.
template <class Visitor, class... WithBatches>
constexpr void visit_batches(Visitor&& visit, WithBatches&... of) {
  using Field = ConfigurationField;
  using enum Field::Role;
  size_t n = num_strategy_fields;
  visit(Field{n++, "B", "global_batch", "train", "the global batch", batch, allowed_batches}, of.global_batch...);
  visit(Field{n++, "b", "micro_batch", "train", "the micro-batch", batch, allowed_batches}, of.micro_batch...);
}

// Visits all fields of configurations: the strategy's, then the batches.
template <class Visitor, class... Configurations>
constexpr void visit_configuration(Visitor&& visit, Configurations&... of) {
  visit_strategy(visit, of.strategy...);
  visit_batches(visit, of...);
}

inline constexpr size_t num_configuration_fields = [] {
  const Configuration configuration;
  size_t count = 0;
  visit_configuration([&](const ConfigurationField&, const auto&) { ++count; }, configuration);
  return count;
}();

// A configuration as integers, for messages between processes of this program.
using ConfigurationWords = std::array<int64_t, num_configuration_fields>;

inline ConfigurationWords to_words(const Configuration& configuration) {
  ConfigurationWords words;
  const auto write = [&](const ConfigurationField& field, const auto& value) {
    words[field.index] = static_cast<int64_t>(value);
  };
  visit_configuration(write, configuration);
  return words;
}

inline Configuration configuration_of_words(std::span<const int64_t, num_configuration_fields> words) {
  Configuration configuration;
  const auto read = [&]<class Value>(const ConfigurationField& field, Value& value) {
    value = static_cast<Value>(words[field.index]);
  };
  visit_configuration(read, configuration);
  return configuration;
}

}  // namespace copus
