// Tests curves between and beyond their points, and the memory of ranks that share devices.
#include "copus/description/cluster_description.h"

#include <gtest/gtest.h>

#include "copus/base/error.h"

namespace copus {
namespace {

TEST(Curve, IsOneWithoutPoints) { EXPECT_EQ(Curve().at(3), 1); }

TEST(Curve, IsLinearInTheLogarithmAndConstantBeyond) {
  const Curve curve({{.at = 10, .value = 0.2}, {.at = 1000, .value = 0.6}, {.at = 2000, .value = 0.5}});
  EXPECT_EQ(curve.at(1), 0.2);
  EXPECT_EQ(curve.at(10), 0.2);
  EXPECT_NEAR(curve.at(100), 0.4, 1e-12);
  EXPECT_EQ(curve.at(1000), 0.6);
  EXPECT_EQ(curve.at(5000), 0.5);
}

TEST(Curve, RefusesPointsOutOfOrder) {
  EXPECT_THROW(Curve({{.at = 2, .value = 1}, {.at = 2, .value = 2}}), InternalError);
  EXPECT_THROW(Curve({{.at = 0, .value = 1}}), InternalError);
}

TEST(MemoryOfRank, IsTheDevicesOrAnEqualPartOfTheNodes) {
  ClusterDescription cluster{.ranks_per_node = 4};
  EXPECT_EQ(memory_of_rank(cluster, 2), 0);
  cluster.device.memory_bytes = 10e9;
  EXPECT_EQ(memory_of_rank(cluster, 2), 10e9);
  cluster.devices_per_node = 2;
  EXPECT_EQ(memory_of_rank(cluster, 1), 20e9);
  EXPECT_EQ(memory_of_rank(cluster, 2), 10e9);
  EXPECT_EQ(memory_of_rank(cluster, 4), 5e9);
  EXPECT_EQ(memory_of_rank(cluster, 8), 5e9);  // on two nodes
}

}  // namespace
}  // namespace copus
