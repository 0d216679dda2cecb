// For tests of an optimizer alone: its slots before the first step.
#pragma once

#include <vector>

#include "copus/model/kernels/kernels.h"
#include "copus/model/memory/parameters.h"
#include "copus/model/memory/state_memory.h"
#include "copus/train/optimizer/optimizer.h"

namespace copus {

inline std::vector<BucketState> zero_slots(const ParameterStore& store, OptimizerKind kind = OptimizerKind::adamw) {
  std::vector<BucketState> state(store.buckets().size());
  for (size_t b = 0; b < state.size(); ++b) {
    const at::Tensor& master = store.buckets()[b].master;
    state[b].slots.resize(optimizer_slots(kind).size());
    if (!master.defined()) continue;
    for (at::Tensor& slot : state[b].slots) {
      slot = kernels::zeros({master.numel()}, master.scalar_type(), master.device());
    }
  }
  return state;
}

}  // namespace copus
