#include "copus/performance/measured/prediction_range.h"

#include <gtest/gtest.h>

#include <cmath>

namespace copus {
namespace {

ClusterDescription nodes_of_eight() {
  ClusterDescription cluster;
  cluster.ranks_per_node = 8;
  return cluster;
}

Configuration layout(int64_t d, int64_t t, int64_t p) {
  Configuration configuration;
  configuration.strategy.data_parallel = d;
  configuration.strategy.tensor_parallel = t;
  configuration.strategy.pipeline_parallel = p;
  configuration.micro_batch = 1;
  configuration.global_batch = 6 * d;
  return configuration;
}

TEST(PredictionRange, LiesAroundThePredictionByItsLogarithm) {
  const PredictionDoubt doubt{.relative_deviation = std::log(2) / 1.96, .stall_seconds = 3};
  const SecondsRange range = doubt.range(10);
  EXPECT_NEAR(range.low, 5, 1e-12);
  EXPECT_NEAR(range.high, 26, 1e-12);
  EXPECT_TRUE(range.holds(5.1) && range.holds(25.9));
  EXPECT_FALSE(range.holds(4.9) || range.holds(26.1));
}

TEST(PredictionRange, TensorParallelGroupsAcrossNodesAreLessSure) {
  const auto deviation = [](const Configuration& configuration) {
    return doubt_of(nodes_of_eight(), TrainingSystem(), configuration).relative_deviation;
  };
  EXPECT_DOUBLE_EQ(deviation(layout(4, 8, 1)), 0.1);
  EXPECT_DOUBLE_EQ(deviation(layout(2, 16, 1)), 0.25);
}

TEST(PredictionRange, PipelinesAcrossNodesMayStall) {
  TrainingSystem system;
  system.stall_seconds = 0.5;
  const auto stall = [&](const Configuration& configuration) {
    return doubt_of(nodes_of_eight(), system, configuration).stall_seconds;
  };
  EXPECT_DOUBLE_EQ(stall(layout(8, 1, 2)), 6 * 2 * 0.5);
  EXPECT_DOUBLE_EQ(stall(layout(1, 4, 8)), 6 * 4 * 0.5);
  EXPECT_DOUBLE_EQ(stall(layout(4, 1, 2)), 0);  // on one node
  EXPECT_DOUBLE_EQ(stall(layout(16, 1, 1)), 0);
}

TEST(PredictionRange, EachDoublingBeyondWhatWasMeasuredAddsToTheDeviation) {
  EXPECT_EQ(nodes_of(nodes_of_eight(), 17), 3);
  EXPECT_DOUBLE_EQ(extrapolation_deviation(8, 8), 0);
  EXPECT_DOUBLE_EQ(extrapolation_deviation(4, 8), 0);
  EXPECT_DOUBLE_EQ(extrapolation_deviation(16, 8), 0.05);
  EXPECT_DOUBLE_EQ(extrapolation_deviation(64, 8), 0.15);
  EXPECT_DOUBLE_EQ(extrapolation_deviation(64, 0), 0);  // unknown
}

}  // namespace
}  // namespace copus
