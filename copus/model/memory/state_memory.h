// The memory of training state: flat tensors, bucket by bucket, in the allocator's memory or in an arena that the
// machine's other ranks can read. A re-layout allocates and drops them one bucket at a time. ParameterStore and the
// optimizer are views over them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "copus/comm/shared_memory/state_arena.h"
#include "copus/placement/bucket_offsets.h"

namespace copus {

// A source of memory for state. Only the rank's training thread uses the source and its tensors.
class StateMemory {
 public:
  virtual ~StateMemory() = default;
  // Returns a flat tensor with arbitrary elements. Its memory is free again once no tensor refers to it.
  virtual at::Tensor allocate(int64_t count, at::ScalarType dtype) = 0;
};

// Allocates tensors as usual on the device.
std::unique_ptr<StateMemory> allocator_memory(at::Device device);
// Allocates in the arena's host memory, which lives as long as any tensor in it. Pages that prefault has not made
// present are made present by allocate(), which throws HostMemoryExceeded if there is no memory. It must not run at the
// same time as StateArena::prefault.
std::unique_ptr<StateMemory> arena_memory(std::shared_ptr<StateArena> arena);

// The flat tensors of one bucket that outlive a step; missing ones are undefined.
struct BucketState {
  at::Tensor weight;    // [kept_weights], compute dtype
  at::Tensor gradient;  // [kept_gradients], master dtype
  // State of this rank's shard in the master dtype: master weights (a view of `weight` if the dtypes are equal) and the
  // optimizer's slots. The list has all slots of the optimizer, undefined ones if the bucket has only a gradient.
  at::Tensor master;
  std::vector<at::Tensor> slots;
};

// Returns kDouble for kDouble (tests), kFloat otherwise.
at::ScalarType master_dtype_of(at::ScalarType compute_dtype);

// Allocates the state that outlives a step, with arbitrary elements, for an optimizer with this number of slots. A
// bucket that has only a gradient gets no other state.
BucketState allocate_state(const BucketOffsets& bucket, at::ScalarType compute_dtype, size_t num_slots,
                           StateMemory& memory);
// Allocates a gradient with arbitrary elements; a step zeroes it before adding to it.
at::Tensor allocate_gradient(const BucketOffsets& bucket, at::ScalarType compute_dtype, StateMemory& memory);
// Allocates the whole state of the rank of `placement`, zeroed. An untrained model has no slots.
std::vector<BucketState> allocate_zeros(const ModelDescription& model, const Placement& placement,
                                        at::ScalarType compute_dtype, size_t num_slots, StateMemory& memory);

// Returns the bytes that allocate_zeros allocates, without allocating.
int64_t state_bytes(const ModelDescription& model, const Placement& placement, at::ScalarType compute_dtype,
                    size_t num_slots);

// Zeroes the elements of weights and slots that belong to no parameter. They must be zero, but reused memory is not.
// `parameters` are the parameters from which `bucket` was arranged.
void clear_padding(const BucketState& state, const BucketOffsets& bucket,
                   const std::vector<LocalParameter>& parameters);

}  // namespace copus
