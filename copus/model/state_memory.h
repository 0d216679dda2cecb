// Where training state lies: flat tensors, bucket by bucket, in memory of the allocator's or in an arena that the other
// ranks of the machine can read. A re-layout makes and drops them one bucket at a time; ParameterStore and AdamW are
// views over them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "copus/comm/shared_memory/state_arena.h"
#include "copus/placement/bucket_offsets.h"

namespace copus {

// Used by the thread that the rank trains on; so are its tensors.
class StateMemory {
 public:
  virtual ~StateMemory() = default;
  // A flat tensor whose elements may be anything. Its memory is free again once no tensor refers to it.
  virtual at::Tensor allocate(int64_t count, at::ScalarType dtype) = 0;
};

// Each tensor as any other on the device.
std::unique_ptr<StateMemory> allocator_memory(at::Device device);
// Host memory of the arena, which lives as long as a tensor in it. allocate makes it present where prefault has not,
// and throws HostMemoryExceeded where there is none. Not beside StateArena::prefault.
std::unique_ptr<StateMemory> arena_memory(std::shared_ptr<StateArena> arena);

// The flat tensors of one bucket; those that it does not have, or not yet, are undefined.
struct BucketState {
  at::Tensor weight;    // [size], compute dtype
  at::Tensor gradient;  // [size], master dtype
  // Of this rank's shard, master dtype. The master weights are a view of `weight` where that is their dtype.
  at::Tensor master, exp_avg, exp_avg_sq;
};

// kDouble for kDouble (tests), kFloat otherwise.
at::ScalarType master_dtype_of(at::ScalarType compute_dtype);

// What outlives a step, with elements that may be anything. A bucket that has only a gradient gets nothing.
BucketState allocate_state(const BucketOffsets& bucket, at::ScalarType compute_dtype, StateMemory& memory);
// Elements may be anything, since a step zeroes them before it adds to them.
at::Tensor allocate_gradient(const BucketOffsets& bucket, at::ScalarType compute_dtype, StateMemory& memory);
// All that the rank of `placement` holds, zero. Without `moments` those of the optimizer are left out, for a model that
// is not trained.
std::vector<BucketState> allocate_zeros(const ModelDescription& model, const Placement& placement,
                                        at::ScalarType compute_dtype, StateMemory& memory, bool moments);

// Zeroes the elements of weights and moments that belong to no parameter: they have to be, and in memory that is used
// again they are not. `parameters`: those that `bucket` was arranged of.
void clear_padding(const BucketState& state, const BucketOffsets& bucket,
                   const std::vector<LocalParameter>& parameters);

}  // namespace copus
