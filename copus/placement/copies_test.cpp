#include "copus/placement/copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "copus/placement/relayout_plan.h"
#include "copus/placement/testing/relayout_requests.h"

namespace copus {
namespace {

TEST(Copies, OfDataParallelRanksAreOnSeveralMachines) {
  EXPECT_TRUE(outlives_any_machine({.data_parallel = 4}, {0, 0, 1, 1}));
  EXPECT_TRUE(outlives_any_machine({.data_parallel = 2, .tensor_parallel = 2}, {0, 0, 1, 1}));
  EXPECT_TRUE(outlives_any_machine({.data_parallel = 2, .pipeline_parallel = 2}, {0, 1, 0, 1}));
  // Ranks of a stage are neighbours, and therefore on one machine here.
  EXPECT_FALSE(outlives_any_machine({.data_parallel = 2, .pipeline_parallel = 2}, {0, 0, 1, 1}));
  EXPECT_FALSE(outlives_any_machine({.pipeline_parallel = 4}, {0, 0, 1, 1}));
  EXPECT_FALSE(outlives_any_machine({.data_parallel = 2}, {0, 0, 1, 1})) << "the second machine's ranks are spares";
  EXPECT_FALSE(outlives_any_machine({}, {0, 1}));
}

TEST(Copies, OfWhatZeroCutsAreThoseOfOtherGroups) {
  for (const int64_t stage : {1, 2, 3}) {
    EXPECT_FALSE(outlives_any_machine({.data_parallel = 4, .zero_stage = stage}, {0, 0, 1, 1}));
    EXPECT_TRUE(outlives_any_machine({.data_parallel = 4, .zero_stage = stage, .zero_replicas = 2}, {0, 0, 1, 1}));
    EXPECT_FALSE(outlives_any_machine({.data_parallel = 4, .zero_stage = stage, .zero_replicas = 2}, {0, 1, 0, 1}));
    EXPECT_TRUE(outlives_any_machine({.data_parallel = 4, .zero_stage = stage, .zero_replicas = 2}, {0, 1, 1, 0}));
  }
}

TEST(Copies, AreOnSeveralMachinesInAnotherOrderOrWithSpares) {
  using Members = std::vector<int64_t>;
  // First a rank on the second machine ends, then a rank on the first.
  EXPECT_EQ(members_that_outlive_any_machine({.data_parallel = 2}, {0, 0, 1}), (Members{0, 2}));
  EXPECT_EQ(members_that_outlive_any_machine({.data_parallel = 2}, {0, 1, 1}), (Members{0, 1}));
  EXPECT_EQ(members_that_outlive_any_machine({.data_parallel = 2, .pipeline_parallel = 2}, {0, 0, 1, 1}),
            (Members{0, 2, 1, 3}));
  EXPECT_EQ(members_that_outlive_any_machine({.pipeline_parallel = 3}, {0, 0, 1}), std::nullopt);
  EXPECT_EQ(members_that_outlive_any_machine({.data_parallel = 4}, {0, 0, 0, 0}), std::nullopt);
}

// Tries all assignments of members to ranks.
TEST(Copies, AreOnSeveralMachinesWhereAnyOrderHasThemThere) {
  const std::vector<ParallelStrategy> strategies = {
      {},
      {.data_parallel = 2},
      {.data_parallel = 3},
      {.data_parallel = 2, .tensor_parallel = 2},
      {.data_parallel = 2, .pipeline_parallel = 2},
      {.data_parallel = 4, .zero_stage = 1, .zero_replicas = 2},
      {.data_parallel = 4, .zero_stage = 3},
      {.tensor_parallel = 2, .pipeline_parallel = 2},
  };
  for (int64_t members = 1; members <= 5; ++members) {
    std::vector<int64_t> machines(members);
    for (int64_t number = 0; number < static_cast<int64_t>(std::pow(3, members)); ++number) {
      for (int64_t i = 0, left = number; i < members; ++i, left /= 3) machines[i] = left % 3;
      for (const ParallelStrategy& strategy : strategies) {
        if (strategy.world_size() > members) continue;
        const auto outlives = [&](const std::vector<int64_t>& chosen) {
          std::vector<int64_t> by_rank;
          for (const int64_t member : chosen) by_rank.push_back(machines[member]);
          return outlives_any_machine(strategy, by_rank);
        };
        std::vector<int64_t> order(members);
        std::iota(order.begin(), order.end(), 0);
        bool is_possible = false;
        do is_possible = is_possible || outlives(order);
        while (std::ranges::next_permutation(order).found);
        const auto chosen = members_that_outlive_any_machine(strategy, machines);
        ASSERT_EQ(chosen.has_value(), is_possible)
            << to_string(strategy) << " on " << ::testing::PrintToString(machines);
        if (!chosen) continue;
        ASSERT_TRUE(outlives(*chosen)) << to_string(strategy) << " on " << ::testing::PrintToString(machines);
        ASSERT_EQ(std::set<int64_t>(chosen->begin(), chosen->end()).size(), chosen->size());
        ASSERT_EQ(chosen->front(), 0);
      }
    }
  }
}

// Compares with the plan of a move, which knows the holders of each element: the state survives a machine's loss
// exactly if a plan without that machine misses no element.
TEST(Copies, AreThoseThatAPlanFinds) {
  const std::vector<std::vector<int64_t>> placements = {{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 0}, {0, 1, 1, 1}};
  const std::vector<ParallelStrategy> strategies = {
      {.data_parallel = 4},
      {.data_parallel = 2, .tensor_parallel = 2},
      {.data_parallel = 2, .pipeline_parallel = 2},
      {.data_parallel = 4, .zero_stage = 1},
      {.data_parallel = 4, .zero_stage = 3, .zero_replicas = 2},
      {.data_parallel = 2, .pipeline_parallel = 2, .zero_stage = 2},
  };
  for (const auto& machines : placements) {
    for (const ParallelStrategy& strategy : strategies) {
      bool is_whole = true;
      for (const int64_t lost : {0, 1}) {
        RelayoutRequest request = relayout_tests::request_for(relayout_tests::small_model(), strategy, {});
        for (int64_t rank = 0; rank < 4; ++rank) {
          if (machines[rank] == lost) request.gone.push_back(rank);
        }
        int64_t survivor = 0;
        while (machines[survivor] == lost) ++survivor;
        request.to_processes = {survivor};
        is_whole = is_whole && plan_relayout(request, survivor).missing.empty();
      }
      EXPECT_EQ(outlives_any_machine(strategy, machines), is_whole)
          << to_string(strategy) << " on " << ::testing::PrintToString(machines);
    }
  }
}

}  // namespace
}  // namespace copus
