#include "copus/model/memory/state_memory.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/comm/world.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/model/memory/parameters.h"
#include "copus/model/testing/odd_model.h"

namespace copus {
namespace {

Placement placement_of(const ModelDescription& model, int64_t data_parallel, int64_t data) {
  Placement placement = whole_model(model);
  placement.strategy.data_parallel = data_parallel;
  placement.strategy.zero_stage = data_parallel > 1 ? 1 : 0;
  placement.here.data = data;
  return placement;
}

std::shared_ptr<StateArena> arena_of_one() { return StateArena::join(*single_rank_world()); }

TEST(ArenaMemory, IsFreeAgainWithItsLastTensorAndLivesAsLong) {
  std::shared_ptr<StateArena> arena = arena_of_one();
  ASSERT_NE(arena, nullptr);
  const std::unique_ptr<StateMemory> memory = arena_memory(arena);
  at::Tensor first = memory->allocate(1000, at::kFloat);
  EXPECT_EQ(first.data_ptr(), arena->mine());
  at::Tensor second = memory->allocate(10, at::kBFloat16);
  EXPECT_EQ(second.data_ptr(), arena->mine() + 4096);
  EXPECT_EQ(memory->allocate(0, at::kFloat).numel(), 0);
  second.fill_(3);
  {
    const at::Tensor view = first.narrow(0, 10, 20);
    first.reset();
    EXPECT_EQ(arena->space().used_bytes(), 2 * 4096);
  }
  EXPECT_EQ(arena->space().used_bytes(), 4096);
  EXPECT_EQ(memory->allocate(1, at::kDouble).data_ptr(), arena->mine()) << "used again";
  const std::weak_ptr<StateArena> watched = arena;
  arena = nullptr;
  EXPECT_EQ(second.sum().item<float>(), 30);
  EXPECT_FALSE(watched.expired());
}

TEST(ArenaMemory, RefusesMoreThanTheArenaHolds) {
  const std::shared_ptr<StateArena> arena = arena_of_one();
  ASSERT_NE(arena, nullptr);
  const std::unique_ptr<StateMemory> memory = arena_memory(arena);
  EXPECT_THROW(memory->allocate(arena->reserved_bytes() + 1, at::kByte), HostMemoryExceeded);
  EXPECT_EQ(arena->space().used_bytes(), 0);
}

class StateMemories : public testing::TestWithParam<at::ScalarType> {};

// Reused memory is dirty, so elements that neither a store nor a re-layout writes must be cleared.
TEST_P(StateMemories, APlacedStoreOverDirtyMemoryEqualsAFreshOne) {
  const ModelDescription model = odd_model();
  const std::shared_ptr<StateArena> arena = arena_of_one();
  ASSERT_NE(arena, nullptr);
  const std::unique_ptr<StateMemory> memory = arena_memory(arena);
  memory->allocate(1 << 20, at::kByte).fill_(0x55);
  for (int64_t data = 0; data < 3; ++data) {
    const Placement placement = placement_of(model, 3, data);
    ParameterStore expected(model, GetParam(), at::kCPU, placement);
    expected.initialize(7);
    const std::vector<LocalParameter> held = list_local_parameters(model, placement);
    const std::vector<BucketOffsets> layouts = arrange_buckets(held, placement);
    ParameterStore fresh(model, GetParam(), placement, allocate_zeros(model, placement, GetParam(), 0, *memory));
    fresh.initialize(7);
    std::vector<BucketState> state;
    for (size_t b = 0; b < layouts.size(); ++b) {
      const BucketOffsets& layout = layouts[b];
      state.push_back(allocate_state(layout, GetParam(), 2, *memory));
      for (const at::Tensor& slot : state[b].slots) slot.fill_(1);
      for (const BucketOffsets::Entry& entry : layout.entries) {
        const int64_t count = held[static_cast<size_t>(entry.parameter)].box.num_elements();
        const at::Tensor& from = expected.buckets()[b].weight;
        state[b].weight.narrow(0, entry.offset, count).copy_(from.narrow(0, entry.offset, count));
        const int64_t begin = std::max(entry.offset, layout.shard_begin);
        const int64_t end = std::min(entry.offset + count, layout.shard_end);
        if (begin >= end) continue;
        const int64_t offset = begin - layout.shard_begin;
        state[b]
            .master.narrow(0, offset, end - begin)
            .copy_(expected.buckets()[b].master.narrow(0, offset, end - begin));
      }
      clear_padding(state[b], layout, held);
      state[b].gradient = allocate_gradient(layout, GetParam(), *memory);
      state[b].gradient.zero_();
    }
    const ParameterStore placed(model, GetParam(), placement, state);
    for (const ParameterStore* store : {static_cast<const ParameterStore*>(&fresh), &placed}) {
      ASSERT_EQ(store->buckets().size(), expected.buckets().size());
      EXPECT_EQ(store->device(), at::kCPU);
      for (size_t b = 0; b < layouts.size(); ++b) {
        EXPECT_TRUE(store->buckets()[b].weight.equal(expected.buckets()[b].weight)) << b;
        EXPECT_TRUE(store->buckets()[b].master.equal(expected.buckets()[b].master)) << b;
        EXPECT_TRUE(store->buckets()[b].gradient.equal(expected.buckets()[b].gradient)) << b;
      }
      for (size_t p = 0; p < store->parameters().size(); ++p) {
        EXPECT_TRUE(store->parameters()[p].weight.equal(expected.parameters()[p].weight)) << p;
      }
    }
    for (size_t b = 0; b < layouts.size(); ++b) {
      int64_t filled = 0;
      for (const BucketOffsets::Entry& entry : layouts[b].entries) {
        const int64_t end = entry.offset + held[static_cast<size_t>(entry.parameter)].box.num_elements();
        filled +=
            std::max(int64_t{0}, std::min(end, layouts[b].shard_end) - std::max(entry.offset, layouts[b].shard_begin));
      }
      for (const at::Tensor& slot : state[b].slots) EXPECT_EQ(slot.sum().item<double>(), static_cast<double>(filled));
      EXPECT_EQ(placed.buckets()[b].weight.data_ptr(), state[b].weight.data_ptr()) << "shares the tensors";
    }
  }
  EXPECT_EQ(arena->space().used_bytes(), 0) << "all of it is free again";
}

INSTANTIATE_TEST_SUITE_P(Precisions, StateMemories, testing::Values(at::kFloat, at::kBFloat16, at::kDouble));

TEST(StateBytes, AreThoseThatTheStateTakes) {
  class Counting : public StateMemory {
   public:
    at::Tensor allocate(int64_t count, at::ScalarType dtype) override {
      bytes += count * static_cast<int64_t>(c10::elementSize(dtype));
      return memory->allocate(count, dtype);
    }
    int64_t bytes = 0;
    std::unique_ptr<StateMemory> memory = allocator_memory(at::kCPU);
  };
  const ModelDescription model = odd_model();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t ranks : {1, 3}) {
      for (const int64_t stage : {0, 1, 2, 3}) {
        Placement placement = placement_of(model, ranks, ranks - 1);
        placement.strategy.zero_stage = ranks > 1 ? stage : 0;
        Counting memory;
        allocate_zeros(model, placement, dtype, /*num_slots=*/3, memory);
        EXPECT_EQ(state_bytes(model, placement, dtype, 3), memory.bytes) << ranks << " ranks, stage " << stage;
      }
    }
  }
  // Computes the size for a model that no machine could hold, without allocating.
  ModelDescription huge = model;
  huge.vocab_size = 1'000'000'000;
  EXPECT_GT(state_bytes(huge, placement_of(huge, 1, 0), at::kFloat, 2),
            int64_t{16} * huge.vocab_size * huge.hidden_size);
}

}  // namespace
}  // namespace copus
