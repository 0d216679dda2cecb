// Ranges of flat gradient buckets for squared norms, which count every logical element once.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/model/memory/parameters.h"

namespace copus {

// Elements begin .. end of a bucket, `end` excluded.
struct GradientRange {
  int64_t bucket;
  int64_t begin;
  int64_t end;
};

// Returns whether this rank counts a parameter's gradient in norms. Among tensor-parallel replicas only the first
// counts it. Of a tied embedding and head, only the embedding is counted.
inline bool counts_here(const ParameterStore& parameters, const Parameter& parameter) {
  return !parameter.tied_copy && parameters.placement().here.tensor % parameter.sharding.replicas == 0;
}

// Returns whether a rank is the first of the data-parallel ranks that update the same elements. With ZeRO these are the
// ranks with the same shard; otherwise they are all data-parallel ranks.
inline bool is_first_with_its_share(const Placement& placement) {
  return placement.here.data < placement.strategy.optimizer_shards();
}

// Returns the ranges of a bucket, in order, with the parameters for which `wanted(parameter)` is true. Adjacent
// parameters form one range; the padding between them has no gradient and stays zero.
template <class Wanted>
std::vector<GradientRange> ranges_of(const ParameterStore& parameters, int64_t bucket, const Wanted& wanted) {
  std::vector<GradientRange> ranges;
  bool previous_wanted = false;
  for (const int64_t index : parameters.buckets()[bucket].parameters) {
    const Parameter& parameter = parameters.parameters()[index];
    const bool joins = previous_wanted;
    previous_wanted = wanted(parameter);
    if (!previous_wanted) continue;
    const int64_t end = parameter.offset + parameter.box.num_elements();
    if (joins) {
      ranges.back().end = end;
    } else {
      ranges.push_back({bucket, parameter.offset, end});
    }
  }
  return ranges;
}

}  // namespace copus
