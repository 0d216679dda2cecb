#include "copus/model/state_memory.h"

#include <algorithm>
#include <utility>

#include "copus/model/caching_allocator.h"
#include "copus/model/kernels.h"

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

BucketState allocate_weights(const BucketLayout& layout, at::ScalarType compute_dtype, StateMemory& memory) {
  BucketState state;
  if (layout.gradient_only) return state;
  const at::ScalarType master_dtype = master_dtype_of(compute_dtype);
  const int64_t shard = layout.shard_end - layout.shard_begin;
  state.weight = memory.allocate(layout.size, compute_dtype);
  state.master = compute_dtype == master_dtype ? state.weight.narrow(0, layout.shard_begin, shard)
                                               : memory.allocate(shard, master_dtype);
  return state;
}

BucketState allocate_state(const BucketLayout& layout, at::ScalarType compute_dtype, StateMemory& memory) {
  BucketState state = allocate_weights(layout, compute_dtype, memory);
  if (layout.gradient_only) return state;
  const int64_t shard = state.master.numel();
  state.exp_avg = memory.allocate(shard, master_dtype_of(compute_dtype));
  state.exp_avg_sq = memory.allocate(shard, master_dtype_of(compute_dtype));
  return state;
}

at::Tensor allocate_gradient(const BucketLayout& layout, at::ScalarType compute_dtype, StateMemory& memory) {
  return memory.allocate(layout.size, master_dtype_of(compute_dtype));
}

void clear_padding(const BucketState& state, const BucketLayout& layout,
                   const std::vector<LocalParameter>& parameters) {
  if (layout.gradient_only) return;
  // As far as the tensor, which starts at element `first` of the bucket, has it.
  const auto clear = [](const at::Tensor& tensor, int64_t first, const Stretch& padding) {
    const int64_t from = std::max(padding.begin - first, int64_t{0});
    const int64_t to = std::min(padding.end - first, tensor.numel());
    if (from < to) tensor.narrow(0, from, to - from).zero_();
  };
  for (const Stretch& padding : find_padding(parameters, layout)) {
    clear(state.weight, 0, padding);
    for (const at::Tensor* shard : {&state.master, &state.exp_avg, &state.exp_avg_sq}) {
      clear(*shard, layout.shard_begin, padding);
    }
  }
}

}  // namespace copus
