#include "copus/workshop/profile/cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "copus/base/error.h"

namespace copus {

namespace {

Configuration interesting() {
  Configuration configuration;
  configuration.strategy = {.data_parallel = 2,
                            .tensor_parallel = 4,
                            .pipeline_parallel = 8,
                            .virtual_stages = 3,
                            .schedule = PipelineSchedule::interleaved_1f1b,
                            .sequence_parallel = true,
                            .zero_stage = 1,
                            .recompute = Recompute::attention};
  configuration.global_batch = 64;
  configuration.micro_batch = 2;
  return configuration;
}

TEST(CellName, IsReadBack) {
  EXPECT_EQ(cell_name(interesting()), "d2 t4 p8 v3 interleaved sp1 zero1 attention gb64 mb2");
  for (const Configuration& configuration : {interesting(), Configuration{}}) {
    EXPECT_EQ(parse_cell_name(cell_name(configuration), interesting()), configuration);
  }
}

TEST(CellName, WhatIsLeftOutIsAsInTheRun) {
  Configuration expected = interesting();
  expected.strategy.tensor_parallel = 1;
  expected.strategy.schedule = PipelineSchedule::zb_h1;
  expected.micro_batch = 4;
  EXPECT_EQ(parse_cell_name(" zb-h1  t1 mb4", interesting()), expected);
}

TEST(CellName, RefusesWhatIsNoPartOfOne) {
  EXPECT_THROW(parse_cell_name("", {}), UserError);
  for (const char* word : {"d", "d0", "q4", "d2x", "2", "sp2", "zerO1", "gb99999999999", "mb-1", "1F1B"}) {
    EXPECT_THROW(parse_cell_name(word, {}), UserError) << word;
  }
}

std::vector<Configuration> candidates() {
  std::vector<Configuration> all;
  for (const int64_t d : {1, 2, 4, 8}) {
    for (const int64_t micro_batch : {1, 2, 4}) {
      for (const Recompute recompute : {Recompute::none, Recompute::full}) {
        Configuration configuration;
        configuration.strategy.data_parallel = d;
        configuration.strategy.pipeline_parallel = 8 / d;
        configuration.strategy.recompute = recompute;
        configuration.global_batch = 32;
        configuration.micro_batch = micro_batch;
        all.push_back(configuration);
      }
    }
  }
  return all;
}

TEST(ChooseCells, FewAreSpreadOut) {
  for (const uint64_t seed : {1, 2, 3}) {
    std::set<int64_t> degrees, micro_batches;
    std::set<Recompute> recomputes;
    for (const Configuration& configuration : choose_cells(candidates(), 6, seed)) {
      degrees.insert(configuration.strategy.data_parallel);
      micro_batches.insert(configuration.micro_batch);
      recomputes.insert(configuration.strategy.recompute);
    }
    EXPECT_GE(degrees.size(), 3U) << seed;
    EXPECT_GE(micro_batches.size(), 2U) << seed;
    EXPECT_EQ(recomputes.size(), 2U) << seed;
  }
}

TEST(ChooseCells, NoneTwiceAndNoMoreThanThereAre) {
  const std::vector<Configuration> all = candidates();
  std::vector<Configuration> chosen = choose_cells(all, 1000, 7);
  EXPECT_EQ(chosen.size(), all.size());
  EXPECT_TRUE(std::is_permutation(chosen.begin(), chosen.end(), all.begin(), all.end()));
  EXPECT_TRUE(choose_cells({}, 3, 7).empty());
}

TEST(ChooseCells, FollowsFromTheSeed) {
  EXPECT_EQ(choose_cells(candidates(), 5, 1), choose_cells(candidates(), 5, 1));
  EXPECT_NE(choose_cells(candidates(), 5, 1), choose_cells(candidates(), 5, 2));
}

}  // namespace

}  // namespace copus
