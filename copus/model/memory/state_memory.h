// The memory of training state: flat tensors by bucket, in the allocator's memory or in an arena that other ranks of
// the machine can read. A re-layout allocates and frees one bucket at a time. ParameterStore and the optimizer are
// views of these tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "copus/comm/shared_memory/state_arena.h"
#include "copus/placement/bucket_offsets.h"

namespace copus {

// A source of memory for state. Only the rank's training thread may use it and its tensors.
class StateMemory {
 public:
  virtual ~StateMemory() = default;
  // Returns a flat tensor with undefined elements. Its memory is free again once no tensor refers to it.
  virtual at::Tensor allocate(int64_t count, at::ScalarType dtype) = 0;
};

// Allocates with the device's allocator.
std::unique_ptr<StateMemory> allocator_memory(at::Device device);
// Allocates in the arena's host memory, which lives as long as any tensor in it. allocate() makes pages present unless
// StateArena::prefault already has, and throws HostMemoryExceeded if memory is lacking. It must not run concurrently
// with StateArena::prefault.
std::unique_ptr<StateMemory> arena_memory(std::shared_ptr<StateArena> arena);

// The flat tensors of one bucket that persist between steps; missing ones are undefined.
struct BucketState {
  at::Tensor weight;    // [kept_weights], compute dtype
  at::Tensor gradient;  // [kept_gradients], master dtype
  // This rank's shard in the master dtype: master weights (a view of `weight` if the dtypes are equal) and all slots of
  // the optimizer, undefined if the bucket has only a gradient.
  at::Tensor master;
  std::vector<at::Tensor> slots;
};

// Returns kDouble for kDouble (tests), kFloat otherwise.
at::ScalarType master_dtype_of(at::ScalarType compute_dtype);

// Allocates the state that persists between steps, with undefined elements, for an optimizer with this number of slots.
// A bucket with only a gradient gets no other state.
BucketState allocate_state(const BucketOffsets& bucket, at::ScalarType compute_dtype, size_t num_slots,
                           StateMemory& memory);
// Allocates a gradient with undefined elements; a step zeroes it before adding to it.
at::Tensor allocate_gradient(const BucketOffsets& bucket, at::ScalarType compute_dtype, StateMemory& memory);
// Allocates the whole state of the rank at `placement`, zeroed. An untrained model needs no slots.
std::vector<BucketState> allocate_zeros(const ModelDescription& model, const Placement& placement,
                                        at::ScalarType compute_dtype, size_t num_slots, StateMemory& memory);

// Returns the bytes that allocate_zeros would allocate.
int64_t state_bytes(const ModelDescription& model, const Placement& placement, at::ScalarType compute_dtype,
                    size_t num_slots);

// Zeroes the padding of weights and slots, because reused memory holds old values. `parameters`: the parameters in
// `bucket`.
void clear_padding(const BucketState& state, const BucketOffsets& bucket,
                   const std::vector<LocalParameter>& parameters);

}  // namespace copus
