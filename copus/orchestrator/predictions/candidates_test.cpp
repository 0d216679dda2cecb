#include "copus/orchestrator/predictions/candidates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "copus/orchestrator/testing/small_run.h"

namespace copus {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

RunConfig copus_run() {
  RunConfig config = small_run();
  config.adapt.policy = PolicyKind::copus;
  return config;
}

// A table of configurations in the order given, each a second longer than the one before.
PerformanceTable table_of(const std::vector<Configuration>& configurations) {
  PerformanceTable table;
  for (const Configuration& configuration : configurations) {
    const auto seconds = static_cast<double>(table.cells.size() + 1);
    table.cells.push_back(
        {.configuration = configuration, .parts = {}, .memory = {}, .step = {seconds, 0.25}, .measured_steps = 3});
  }
  return table;
}

std::vector<Configuration> configurations_of(const std::vector<Candidate>& candidates) {
  std::vector<Configuration> configurations;
  for (const Candidate& candidate : candidates) configurations.push_back(candidate.configuration);
  return configurations;
}

TEST(SearchSpaceOf, GoesFromAQuarterToSixtyFourTimesTheBatch) {
  const SearchSpace space = search_space_of(copus_run());
  EXPECT_EQ(space.world_size, 2);
  EXPECT_THAT(space.global_batches, ElementsAre(2, 4, 8, 16, 32, 64, 128, 256, 512));
  EXPECT_TRUE(space.micro_batches.empty());
  EXPECT_THAT(space.zero_stages, ElementsAre(0));
}

// A run that begins in a large batch can reach the small batch that its learning rate is for.
TEST(SearchSpaceOf, ReachesDownToTheBatchThatTheLearningRateIsFor) {
  RunConfig config = copus_run();
  config.train.global_batch = 128;
  config.optimizer.reference_batch = 16;
  std::vector<int64_t> batches = search_space_of(config).global_batches;
  EXPECT_EQ(batches.front(), 4);
  EXPECT_EQ(batches.back(), 64 * 128);
  config.optimizer.reference_batch = 1024;
  batches = search_space_of(config).global_batches;
  EXPECT_EQ(batches.front(), 32);
  EXPECT_EQ(batches.back(), 64 * 128);
}

// A program of 3 ranks with micro-batches of 2 cannot train in batches that are powers of two.
TEST(BatchesOf, ScalesTheOwnBatchesOfAProgramThatTrainsElsewhere) {
  AdvisedConfig config;
  config.train.global_batch = 12;
  config.optimizer.reference_batch = 12;
  EXPECT_THAT(batches_of(config), ElementsAre(3, 6, 12, 24, 48, 96, 192, 384, 768));
  config.train.global_batch = 10;
  config.optimizer.reference_batch = 4;
  EXPECT_THAT(batches_of(config), testing::IsSupersetOf({1, 2, 4, 5, 8, 10, 20, 640}));
}

TEST(SearchSpaceOf, AddsTheRunItselfToWhatIsListed) {
  RunConfig config = copus_run();
  config.adapt.global_batches = {16, 32};
  config.adapt.micro_batches = {4};
  config.adapt.zero_stages = {1};
  const SearchSpace space = search_space_of(config);
  EXPECT_THAT(space.global_batches, UnorderedElementsAre(8, 16, 32));
  EXPECT_THAT(space.micro_batches, UnorderedElementsAre(2, 4));
  EXPECT_THAT(space.zero_stages, UnorderedElementsAre(0, 1));
}

TEST(SearchSpaceOf, ListedStagesOfZeroBringBothWaysOfGathering) {
  RunConfig config = copus_run();
  EXPECT_THAT(search_space_of(config).reshard_after_forward, ElementsAre(true));
  config.adapt.zero_stages = {0, 1, 2, 3};
  const SearchSpace space = search_space_of(config);
  EXPECT_THAT(space.zero_stages, UnorderedElementsAre(0, 1, 2, 3));
  std::set<std::pair<int64_t, bool>> ways;
  for (const Configuration& configuration : enumerate(config.model, config.train.sequence_length, space)) {
    EXPECT_TRUE(configuration.strategy.data_parallel > 1 || configuration.strategy.zero_stage == 0);
    ways.emplace(configuration.strategy.zero_stage, configuration.strategy.reshard_after_forward);
  }
  EXPECT_EQ(ways, (std::set<std::pair<int64_t, bool>>{{0, true}, {1, true}, {2, true}, {3, false}, {3, true}}));
}

TEST(SearchSpaceOf, TensorParallelismStaysWithinANodeUnlessTheRunSaysOtherwise) {
  RunConfig config = copus_run();
  config.cluster.description.ranks_per_node = 4;
  EXPECT_EQ(search_space_of(config).max_tensor_parallel, 4);
  config.adapt.max_tensor_parallel = 8;
  EXPECT_EQ(search_space_of(config).max_tensor_parallel, 8);
  config.adapt.max_tensor_parallel = 0;
  config.parallel.tensor_parallel = 8;
  EXPECT_EQ(search_space_of(config).max_tensor_parallel, 8);
}

TEST(Candidates, AreTheCellsOfTheTable) {
  const Configuration first{{.data_parallel = 2}, 8, 2}, second{{.data_parallel = 2}, 16, 2};
  const auto candidates = candidates_of(table_of({first, second}), {first, 9, 9, 9}, copus_run());
  ASSERT_EQ(candidates.size(), 2u);
  EXPECT_EQ(candidates[1].configuration, second);
  EXPECT_EQ(candidates[1].step_seconds, 2);
  EXPECT_EQ(candidates[1].relative_deviation, 0.25);
  EXPECT_EQ(candidates[1].measured_steps, 3);
}

TEST(Candidates, HaveTheCurrentConfigurationThoughTheTableHasNot) {
  const Configuration listed{{.data_parallel = 2}, 8, 2}, forced{{.data_parallel = 2}, 24, 3};
  const auto candidates = candidates_of(table_of({listed}), {forced, 5, 0.1, 7}, copus_run());
  ASSERT_EQ(candidates.size(), 2u);
  EXPECT_EQ(candidates[1].configuration, forced);
  EXPECT_EQ(candidates[1].step_seconds, 5);
}

TEST(Candidates, DoNotLeaveAPolicyBlindThatGoesByTheNoiseScale) {
  const ParallelStrategy pipeline{.pipeline_parallel = 2}, data{.data_parallel = 2};
  const Configuration one_sample{pipeline, 1, 1}, one_micro_batch{pipeline, 8, 8}, two_micro_batches{pipeline, 8, 4},
      only_one_micro_batch{pipeline, 16, 16}, one_each{data, 8, 4};
  const PerformanceTable table =
      table_of({one_sample, one_micro_batch, two_micro_batches, only_one_micro_batch, one_each});
  const Candidate current{one_each, 5, 0.1, 7};

  RunConfig config = copus_run();
  EXPECT_THAT(configurations_of(candidates_of(table, current, config)),
              ElementsAre(two_micro_batches, only_one_micro_batch, one_each));
  EXPECT_EQ(candidates_of(table, {one_micro_batch, 5, 0.1, 7}, config).size(), 4u);  // the run may stay where it is
  config.noise_scale.split_interval = 1;  // every step is split, so only the batch of one sample is blind
  EXPECT_EQ(candidates_of(table, current, config).size(), 4u);
  config.adapt.policy = PolicyKind::steps;
  EXPECT_EQ(candidates_of(table, current, config).size(), 5u);
}

}  // namespace
}  // namespace copus
