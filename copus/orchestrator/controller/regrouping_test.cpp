#include "copus/orchestrator/controller/regrouping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "copus/orchestrator/predictions/candidates.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/orchestrator/testing/small_run.h"
#include "copus/performance/measured/table.h"

namespace copus {
namespace {

// Twelve ranks, four on a node, and batches with many divisors.
RunConfig twelve_ranks() {
  RunConfig config = small_run();
  config.model.num_layers = 6;
  config.train.global_batch = 24;
  config.parallel = {.data_parallel = 3, .tensor_parallel = 2, .pipeline_parallel = 2};
  config.cluster.description.ranks_per_node = 4;
  config.cluster.description.within_node = {1e-6, 1e9};
  config.cluster.description.between_nodes = {1e-5, 1e8};
  return config;
}

// Every cell of the current batch on 1 to `ranks` ranks.
std::vector<TableCell> cells_up_to(const RunConfig& config, int64_t batch, int64_t ranks, const Knowledge& knowledge) {
  std::vector<TableCell> cells;
  for (int64_t used = 1; used <= ranks; ++used) {
    for (const TableCell& cell : predicted_table(config, knowledge, used).cells) {
      if (cell.configuration.global_batch == batch) cells.push_back(cell);
    }
  }
  return cells;
}

TEST(ConfigurationForRanks, IsTheFastestOfTheBatchOnAnyOfTheRanks) {
  const RunConfig config = twelve_ranks();
  const Configuration current = configuration_of(config);
  for (int64_t ranks = 1; ranks <= 13; ++ranks) {
    const Configuration chosen = configuration_for_ranks(config, current, ranks, Knowledge()).value();
    EXPECT_EQ(chosen.global_batch, 24);
    EXPECT_LE(chosen.strategy.world_size(), ranks);
    EXPECT_FALSE(infeasible_reason(config.model, chosen, config.train.sequence_length));
    double least = std::numeric_limits<double>::infinity(), own = least;
    for (const TableCell& cell : cells_up_to(config, 24, ranks, Knowledge())) {
      least = std::min(least, cell.step.seconds);
      if (cell.configuration == chosen) own = cell.step.seconds;
    }
    EXPECT_EQ(own, least) << ranks;
  }
  EXPECT_NE(configuration_for_ranks(config, current, 12, Knowledge()), current) << "current has no privilege";
}

TEST(ConfigurationForRanks, LeavesRanksOutThatNoLayoutCanUseOrThatWouldSlowItDown) {
  RunConfig config = twelve_ranks();
  const Configuration current = configuration_of(config);
  EXPECT_LT(configuration_for_ranks(config, current, 11, Knowledge())->strategy.world_size(), 11)
      << "nothing divides into 11";
  config.cluster.description.between_nodes = {1, 1e3};
  for (const int64_t ranks : {5, 6, 8, 12}) {
    EXPECT_LE(configuration_for_ranks(config, current, ranks, Knowledge())->strategy.world_size(), 4)
        << "the network is too slow to leave a node";
  }
}

TEST(ConfigurationForRanks, KeepsTheBatchThatTheRunIsIn) {
  const RunConfig config = twelve_ranks();
  Configuration current = configuration_of(config);
  current.global_batch = 36;
  EXPECT_EQ(configuration_for_ranks(config, current, 9, Knowledge())->global_batch, 36);
}

TEST(ConfigurationForRanks, GoesByWhatWasMeasured) {
  const RunConfig config = twelve_ranks();
  const Configuration current = configuration_of(config);
  const Configuration first = configuration_for_ranks(config, current, 6, Knowledge()).value();
  const auto cells = cells_up_to(config, 24, 6, Knowledge());
  const auto cell =
      std::find_if(cells.begin(), cells.end(), [&](const TableCell& c) { return c.configuration == first; });
  // The first choice is measured to be ten times as slow as predicted.
  const Knowledge knowledge = observe(Knowledge(), first, cell->parts, {10, 10 * cell->step.seconds, 0.01});
  const Configuration second = configuration_for_ranks(config, current, 6, knowledge).value();
  EXPECT_NE(second, first);
  for (const TableCell& other : cells_up_to(config, 24, 6, knowledge)) {
    if (other.configuration != second) continue;
    EXPECT_LT(other.step.seconds, 10 * cell->step.seconds);
  }
}

TEST(ConfigurationForRanks, IsNoneWhereNothingFits) {
  for (const double flops : {1e9, 0.0}) {
    RunConfig config = twelve_ranks();
    config.model.hidden_size = 256;
    config.cluster.description.flops_per_second = flops;
    const Configuration current = configuration_of(config);
    MemoryModel memory = memory_model_of(config);
    // As much as a rank needs that holds one of four parts of the model, and no more.
    config.cluster.description.device.memory_bytes = memory.predict(current).parts.total();
    for (int64_t ranks = 1; ranks <= 12; ++ranks) {
      const auto chosen = configuration_for_ranks(config, current, ranks, Knowledge());
      if (!chosen) continue;
      EXPECT_LE(memory.predict(*chosen).parts.total(), config.cluster.description.device.memory_bytes);
    }
    EXPECT_FALSE(configuration_for_ranks(config, current, 1, Knowledge()));
    EXPECT_TRUE(configuration_for_ranks(config, current, 12, Knowledge()));
  }
}

TEST(ConfigurationForRanks, WhatIsPreferredComesFirstWhereItIsFeasible) {
  for (const double flops : {1e12, 0.0}) {
    RunConfig config = twelve_ranks();
    config.cluster.description.flops_per_second = flops;
    const Configuration current = configuration_of(config);
    const auto choose = [&](const auto& is_preferred) {
      return configuration_for_ranks(config, current, 11, Knowledge(), is_preferred).value();
    };
    const Configuration fastest = configuration_for_ranks(config, current, 11, Knowledge()).value();
    EXPECT_EQ(choose([](const Configuration&) { return false; }), fastest);
    const Configuration other = choose([&](const Configuration& one) { return one.strategy != fastest.strategy; });
    EXPECT_NE(other.strategy, fastest.strategy);
    EXPECT_EQ(choose([&](const Configuration& one) { return one.strategy.data_parallel == 3; }).strategy.data_parallel,
              3);
  }
}

// ---- If the cluster's speed is not described ----

class OfUnknownSpeed : public testing::Test {
 protected:
  OfUnknownSpeed() { config_.cluster.description.flops_per_second = 0; }

  Configuration chosen(int64_t ranks) const {
    return configuration_for_ranks(config_, current_, ranks, Knowledge()).value();
  }

  RunConfig config_ = twelve_ranks();
  Configuration current_ = configuration_of(config_);
};

TEST_F(OfUnknownSpeed, ARunStaysAsItIsWhereItCan) {
  EXPECT_EQ(chosen(12), current_);
  current_.strategy.data_parallel = 2;
  EXPECT_EQ(chosen(8), current_);
}

TEST_F(OfUnknownSpeed, MostRanksCountMoreThanTheShapeOfTheLayout) {
  // No layout has 11 ranks. 10 ranks are two pipelines of five stages; t = p = 2 would use 8.
  EXPECT_EQ(chosen(11).strategy, (ParallelStrategy{.data_parallel = 2, .pipeline_parallel = 5}));
  EXPECT_EQ(chosen(8).strategy, (ParallelStrategy{.data_parallel = 2, .tensor_parallel = 2, .pipeline_parallel = 2}));
  EXPECT_EQ(chosen(8).micro_batch, current_.micro_batch);
}

TEST_F(OfUnknownSpeed, OfOtherShapesTheOneWithTheFewestMicroBatchesARankIsTaken) {
  EXPECT_EQ(chosen(3).strategy.data_parallel, 3);
  EXPECT_EQ(chosen(3).micro_batch, 2);
  current_.micro_batch = 16;  // more than a rank has, if there are three
  EXPECT_EQ(chosen(3).micro_batch, 8);
}

TEST_F(OfUnknownSpeed, OptionsStayWhatTheyWere) {
  config_.adapt.zero_stages = {0, 1, 2, 3};
  config_.adapt.recomputes = {Recompute::none, Recompute::full};
  current_.strategy = {.data_parallel = 4, .zero_stage = 2, .recompute = Recompute::full};
  const Configuration three = chosen(3);
  EXPECT_EQ(three.strategy, (ParallelStrategy{.data_parallel = 3, .zero_stage = 2, .recompute = Recompute::full}));
}

}  // namespace
}  // namespace copus
