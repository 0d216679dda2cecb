#include "copus/train/run/run_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "copus/base/testing/test_support.h"
#include "copus/orchestrator/testing/small_run.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(StateBytesOf, CountsUnequalStagesAsTheyAre) {
  RunConfig config = small_run();
  config.model.vocab_size = 4096;  // the embedding makes the first and last stage larger than the others
  config.model.num_layers = 8;
  const ParallelStrategy stages{.pipeline_parallel = 4};
  double all = 0, largest = 0, smallest = 1e300;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const double bytes = state_bytes_of(config, stages, rank, 1).of_rank;
    all += bytes;
    largest = std::max(largest, bytes);
    smallest = std::min(smallest, bytes);
  }
  ASSERT_GT(largest, 2 * smallest);
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_DOUBLE_EQ(state_bytes_of(config, stages, rank, 4).of_machine, all);
    EXPECT_DOUBLE_EQ(state_bytes_of(config, stages, rank, 2).of_machine, all / 2);
    EXPECT_DOUBLE_EQ(state_bytes_of(config, stages, rank, 8).of_machine, all) << "of which some wait as spares";
  }
}

TEST(CheckUnits, ARunWhoseLayoutCutsBelowTheOptimizersUnitIsRefusedBeforeItBegins) {
  const RunConfig config = small_run();
  const std::vector<OptimizerSlot> slots = {{"momentum", DType::f32, CutUnit::matrix}};
  const Configuration cut{{.data_parallel = 2, .zero_stage = 1}, 8, 2}, whole{{.data_parallel = 2}, 8, 2};
  EXPECT_THAT(user_error([&] { check_units(config, cut, slots); }),
              AllOf(HasSubstr("the run cannot begin in d=2,t=1,p=1,B=8,b=2,zero=1: parallel.zero_stage 1 cuts "),
                    HasSubstr("but the optimizer's momentum needs whole matrices; the nearest is 0")));
  EXPECT_EQ(user_error([&] { check_units(config, whole, slots); }), "no UserError");
  EXPECT_EQ(user_error([&] { check_units(config, cut, optimizer_slots(config.optimizer.kind)); }), "no UserError");
}

}  // namespace
}  // namespace copus
