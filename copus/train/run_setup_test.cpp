#include "copus/train/run_setup.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "copus/orchestrator/testing/small_run.h"

namespace copus {
namespace {

TEST(StateBytesOf, CountsUnequalStagesAsTheyAre) {
  RunConfig config = small_run();
  config.model.vocab_size = 4096;  // so that the embedding makes the first stage and the last larger than the others
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

}  // namespace
}  // namespace copus
