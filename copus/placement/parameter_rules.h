// Rules that follow from how tensor parallelism splits a parameter. Only this room's sources include this header.
#pragma once

#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// Returns whether tensor-parallel ranks with the same part of a parameter compute different gradients, which must be
// summed. Gradients of norms differ if each rank sees its own rows (sequence parallelism) or its own heads. Gradients
// of split parameters differ because each rank sees its own query heads. Gradients of whole biases and of positions are
// equal, because all ranks see every row.
inline bool replicas_differ(const ParameterInfo& parameter, const ParallelStrategy& strategy) {
  const bool is_of_norm = parameter.kind == ParameterKind::norm || parameter.kind == ParameterKind::norm_bias;
  if (is_of_norm) return strategy.sequence_parallel || parameter.split.by_head;
  return parameter.split.units > 0;
}

// Returns whether two consecutive parameters of a bucket are stored back to back.
inline bool are_joined(const ParameterInfo& one, const ParameterInfo& other) {
  return one.kind == other.kind && !one.split.input.empty() && one.split.input == other.split.input;
}

}  // namespace copus
