#include "copus/workshop/profile/cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace copus {

namespace {

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
