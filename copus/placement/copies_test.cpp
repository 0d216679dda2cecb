#include "copus/placement/copies.h"

#include <gtest/gtest.h>

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
  // Ranks of a stage are neighbours, and so on one machine here.
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

// The plan of a move knows for each element who has it. What it finds on no machine that is left is what this is about.
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
