// What follows from how tensor parallelism splits a parameter. Only this room's sources include this header.
#pragma once

#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// Returns whether tensor-parallel ranks that hold the same part of a parameter compute different gradients for it. The
// gradients of norms differ if each rank sees its own rows (sequence parallelism) or its own heads. The gradients of
// sharded parameters differ because each rank sees its own query heads. The gradients of unsharded biases and of
// positions are equal: all ranks see every row.
inline bool replicas_differ(const ParameterInfo& parameter, const ParallelStrategy& strategy) {
  const bool is_of_norm = parameter.kind == ParameterKind::norm || parameter.kind == ParameterKind::norm_bias;
  if (is_of_norm) return strategy.sequence_parallel || parameter.split.by_head;
  return parameter.split.units > 0;
}

// Whether two consecutive parameters of a bucket are stored back to back.
inline bool are_joined(const ParameterInfo& one, const ParameterInfo& other) {
  return one.kind == other.kind && !one.split.input.empty() && one.split.input == other.split.input;
}

}  // namespace copus
