#include "copus/model/memory/state_memory.h"

#include <algorithm>
#include <utility>

#include "copus/model/kernels/kernels.h"
#include "copus/model/memory/caching_allocator.h"

namespace copus {

namespace {

class AllocatorMemory final : public StateMemory {
 public:
  explicit AllocatorMemory(at::Device device) : device_(device) {}
  at::Tensor allocate(int64_t count, at::ScalarType dtype) override { return kernels::empty({count}, dtype, device_); }

 private:
  at::Device device_;
};

class ArenaMemory final : public StateMemory {
 public:
  explicit ArenaMemory(std::shared_ptr<StateArena> arena) : arena_(std::move(arena)) {}

  at::Tensor allocate(int64_t count, at::ScalarType dtype) override {
    const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(dtype));
    if (bytes == 0) return kernels::empty({0}, dtype, at::kCPU);
    const int64_t offset = arena_->space().allocate(bytes);
    const auto release = [arena = arena_, offset] { arena->space().release(offset); };
    if (!arena_->prefault(offset + bytes)) {
      release();
      throw HostMemoryExceeded();
    }
    return kernels::over_host_memory(arena_->mine() + offset, {count}, dtype, release);
  }

 private:
  std::shared_ptr<StateArena> arena_;
};

}  // namespace

std::unique_ptr<StateMemory> allocator_memory(at::Device device) { return std::make_unique<AllocatorMemory>(device); }

std::unique_ptr<StateMemory> arena_memory(std::shared_ptr<StateArena> arena) {
  return std::make_unique<ArenaMemory>(std::move(arena));
}

at::ScalarType master_dtype_of(at::ScalarType compute_dtype) {
  return compute_dtype == at::kDouble ? at::kDouble : at::kFloat;
}

BucketState allocate_state(const BucketOffsets& bucket, at::ScalarType compute_dtype, size_t num_slots,
                           StateMemory& memory) {
  BucketState state;
  state.slots.resize(num_slots);
  if (bucket.gradient_only) return state;
  const at::ScalarType master_dtype = master_dtype_of(compute_dtype);
  const int64_t shard = bucket.shard_end - bucket.shard_begin;
  state.weight = memory.allocate(bucket.kept_weights.size(), compute_dtype);
  state.master = compute_dtype == master_dtype
                     ? state.weight.narrow(0, bucket.shard_begin - bucket.kept_weights.begin, shard)
                     : memory.allocate(shard, master_dtype);
  for (at::Tensor& slot : state.slots) slot = memory.allocate(shard, master_dtype);
  return state;
}

at::Tensor allocate_gradient(const BucketOffsets& bucket, at::ScalarType compute_dtype, StateMemory& memory) {
  return memory.allocate(bucket.kept_gradients.size(), master_dtype_of(compute_dtype));
}

std::vector<BucketState> allocate_zeros(const ModelDescription& model, const Placement& placement,
                                        at::ScalarType compute_dtype, size_t num_slots, StateMemory& memory) {
  std::vector<BucketState> all;
  for (const BucketOffsets& bucket : arrange_buckets(list_local_parameters(model, placement), placement)) {
    BucketState& state = all.emplace_back(allocate_state(bucket, compute_dtype, num_slots, memory));
    state.gradient = allocate_gradient(bucket, compute_dtype, memory);
    state.gradient.zero_();
    if (bucket.gradient_only) continue;
    state.weight.zero_();
    state.master.zero_();
    for (const at::Tensor& slot : state.slots) slot.zero_();
  }
  return all;
}

int64_t state_bytes(const ModelDescription& model, const Placement& placement, at::ScalarType compute_dtype,
                    size_t num_slots) {
  const auto size = [](at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); };
  const at::ScalarType master_dtype = master_dtype_of(compute_dtype);
  int64_t bytes = 0;
  for (const BucketOffsets& bucket : arrange_buckets(list_local_parameters(model, placement), placement)) {
    bytes += bucket.kept_gradients.size() * size(master_dtype);
    if (bucket.gradient_only) continue;
    const int64_t shard = bucket.shard_end - bucket.shard_begin;
    const int64_t tensors_of_shard = static_cast<int64_t>(num_slots) + (compute_dtype == master_dtype ? 0 : 1);
    bytes += bucket.kept_weights.size() * size(compute_dtype) + tensors_of_shard * shard * size(master_dtype);
  }
  return bytes;
}

void clear_padding(const BucketState& state, const BucketOffsets& bucket,
                   const std::vector<LocalParameter>& parameters) {
  if (bucket.gradient_only) return;
  // Clears the padding within the tensor, which starts at element `first` of the bucket.
  const auto clear = [](const at::Tensor& tensor, int64_t first, const Stretch& padding) {
    const int64_t from = std::max(padding.begin - first, int64_t{0});
    const int64_t to = std::min(padding.end - first, tensor.numel());
    if (from < to) tensor.narrow(0, from, to - from).zero_();
  };
  for (const Stretch& padding : find_padding(parameters, bucket)) {
    clear(state.weight, bucket.kept_weights.begin, padding);
    clear(state.master, bucket.shard_begin, padding);
    for (const at::Tensor& slot : state.slots) clear(slot, bucket.shard_begin, padding);
  }
}

}  // namespace copus
