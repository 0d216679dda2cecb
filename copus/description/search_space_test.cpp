#include "copus/description/search_space.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace copus {
namespace {

ModelDescription small_model() {
  ModelDescription model;
  model.vocab_size = 256;
  model.hidden_size = 96;
  model.intermediate_size = 240;
  model.num_layers = 6;
  model.num_heads = 12;
  model.num_kv_heads = 4;
  model.head_dim = 8;
  return model;
}

constexpr int64_t sequence_length = 10;

// Resets all fields that have no effect to their defaults.
Configuration in_normal_form(Configuration configuration) {
  ParallelStrategy& strategy = configuration.strategy;
  if (strategy.pipeline_parallel == 1) strategy.schedule = PipelineSchedule::one_f_one_b;
  if (strategy.data_parallel == 1) {
    strategy.zero_stage = 0;
    strategy.reshard_after_forward = true;
  }
  return configuration;
}

std::vector<Configuration> sorted(std::vector<Configuration> configurations) {
  std::sort(configurations.begin(), configurations.end());
  return configurations;
}

constexpr std::pair<int64_t, bool> ways_to_share[] = {{0, true}, {1, true}, {2, true}, {3, true}, {3, false}};

// Tries all configurations up to limits that no feasible one exceeds, with infeasible_reason alone as judge.
std::vector<Configuration> by_brute_force(const SearchSpace& space, int64_t most_tensor_parallel) {
  std::vector<Configuration> found;
  const auto judge = [&](const Configuration& configuration) {
    if (!infeasible_reason(small_model(), configuration, sequence_length)) {
      found.push_back(in_normal_form(configuration));
    }
  };
  for (int64_t d = 1; d <= space.world_size; ++d) {
    for (int64_t t = 1; t <= std::min(space.world_size, most_tensor_parallel); ++t) {
      for (int64_t p = 1; p <= space.world_size; ++p) {
        if (d * t * p != space.world_size) continue;
        for (int64_t v = 1; v <= 7; ++v) {
          for (const PipelineSchedule schedule : space.schedules) {
            for (const Recompute recompute : space.recomputes) {
              for (const bool shared : {false, true}) {
                for (const auto& [zero_stage, reshards] : ways_to_share) {
                  const ParallelStrategy strategy{d, t, p, v, schedule, shared, zero_stage, recompute, reshards};
                  for (const int64_t global_batch : space.global_batches) {
                    for (int64_t micro_batch = 1; micro_batch <= global_batch; ++micro_batch) {
                      if (global_batch % micro_batch == 0) judge({strategy, global_batch, micro_batch});
                    }
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  found = sorted(std::move(found));
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

SearchSpace everything(int64_t world_size) {
  SearchSpace space;
  space.world_size = world_size;
  space.global_batches = {12, 24, 30};
  for (int64_t i = 1; i <= 30; ++i) space.micro_batches.push_back(i);
  for (int64_t i = 1; i <= 7; ++i) space.virtual_stages.push_back(i);
  return space;
}

TEST(SearchSpace, HoldsAllThatIsFeasible) {
  for (const int64_t world_size : {1, 2, 6, 12, 7}) {
    const SearchSpace space = everything(world_size);
    const auto found = enumerate(small_model(), sequence_length, space);
    EXPECT_EQ(sorted(found), by_brute_force(space, world_size)) << world_size;
    EXPECT_EQ(found.empty(), world_size == 7);  // none of 12, 24 and 30 is a multiple of 7
  }
}

TEST(SearchSpace, LimitsTensorParallelism) {
  SearchSpace space = everything(12);
  space.max_tensor_parallel = 2;
  EXPECT_EQ(sorted(enumerate(small_model(), sequence_length, space)), by_brute_force(space, 2));
}

TEST(SearchSpace, ListsCopiesThatShareSomething) {
  const auto copies = [](int64_t world_size, std::vector<int64_t> zero_replicas) {
    SearchSpace space = everything(world_size);
    space.zero_replicas = std::move(zero_replicas);
    std::set<std::tuple<int64_t, int64_t, int64_t>> found;  // d, whether ZeRO shards, replicas
    for (const Configuration& configuration : enumerate(small_model(), sequence_length, space)) {
      const ParallelStrategy& strategy = configuration.strategy;
      found.emplace(strategy.data_parallel, strategy.zero_stage > 0, strategy.zero_replicas);
    }
    return found;
  };
  using Found = std::set<std::tuple<int64_t, int64_t, int64_t>>;
  EXPECT_EQ(copies(6, {1, 2, 6}),
            (Found{{1, 0, 1}, {2, 0, 1}, {2, 1, 1}, {3, 0, 1}, {3, 1, 1}, {6, 0, 1}, {6, 1, 1}, {6, 1, 2}}));
  // If a layout allows none of the listed numbers of copies, there is one copy.
  EXPECT_EQ(copies(6, {2}), (Found{{1, 0, 1}, {2, 0, 1}, {2, 1, 1}, {3, 0, 1}, {3, 1, 1}, {6, 0, 1}, {6, 1, 2}}));
}

TEST(SearchSpace, HasADefaultForMicroBatchesAndVirtualStages) {
  SearchSpace space = everything(2);
  space.micro_batches.clear();
  space.virtual_stages.clear();
  auto expected = by_brute_force(space, 2);
  std::erase_if(expected, [](const Configuration& configuration) {
    const auto micro_batch = configuration.micro_batch;
    return (micro_batch & (micro_batch - 1)) != 0;
  });
  // Two ranks with three layers each: 2 is a power of two, and 3 splits them evenly.
  EXPECT_EQ(sorted(enumerate(small_model(), sequence_length, space)), expected);

  ModelDescription deeper = small_model();
  deeper.num_layers = 13;
  std::vector<int64_t> chunks;
  for (const auto& configuration : enumerate(deeper, sequence_length, space)) {
    if (configuration.strategy.virtual_stages > 1) chunks.push_back(configuration.strategy.virtual_stages);
  }
  EXPECT_THAT(chunks, testing::Each(testing::AnyOf(2, 4)));
  EXPECT_THAT(chunks, testing::IsSupersetOf({2, 4}));
}

TEST(SearchSpace, AsksForNothingTwice) {
  SearchSpace space = everything(12);
  const auto found = enumerate(small_model(), sequence_length, space);
  const auto twice = [](auto& values) {
    const auto copy = values;
    values.insert(values.end(), copy.rbegin(), copy.rend());
  };
  twice(space.global_batches);
  twice(space.micro_batches);
  twice(space.schedules);
  twice(space.virtual_stages);
  twice(space.recomputes);
  twice(space.sequence_parallel);
  twice(space.zero_stages);
  EXPECT_EQ(enumerate(small_model(), sequence_length, space), found);
}

// A list may lack the value that a field has where it has no effect. This does not exclude such layouts.
TEST(SearchSpace, ListsRestrictOnlyWhatTheyMatterTo) {
  SearchSpace space = everything(2);
  space.schedules = {PipelineSchedule::gpipe};
  space.sequence_parallel = {true};
  space.zero_stages = {1};
  space.recomputes = {Recompute::full};
  space.global_batches = {12};
  space.micro_batches = {3};
  const ParallelStrategy data{.data_parallel = 2, .zero_stage = 1, .recompute = Recompute::full};
  const ParallelStrategy pipeline{
      .pipeline_parallel = 2, .schedule = PipelineSchedule::gpipe, .recompute = Recompute::full};
  const ParallelStrategy tensor{.tensor_parallel = 2, .sequence_parallel = true, .recompute = Recompute::full};
  EXPECT_EQ(enumerate(small_model(), sequence_length, space),
            (std::vector<Configuration>{{data, 12, 3}, {pipeline, 12, 3}, {tensor, 12, 3}}));
}

TEST(SearchSpace, OfNothingIsEmpty) {
  SearchSpace space = everything(2);
  space.global_batches = {0, -4};
  EXPECT_TRUE(enumerate(small_model(), sequence_length, space).empty());
  space.global_batches = {12};
  space.micro_batches = {0, -1};
  EXPECT_TRUE(enumerate(small_model(), sequence_length, space).empty());
  space.global_batches.clear();
  EXPECT_TRUE(enumerate(small_model(), sequence_length, space).empty());
}

}  // namespace
}  // namespace copus
