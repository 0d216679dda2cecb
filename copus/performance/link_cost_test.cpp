#include "copus/performance/link_cost.h"

#include <gtest/gtest.h>

#include <vector>

namespace copus {
namespace {

constexpr Link link{.latency_seconds = 0.5, .bytes_per_second = 100};

TEST(LinkCost, AGroupUsesTheSlowestLinkThatItNeeds) {
  const ClusterDescription cluster{
      .ranks_per_node = 4, .within_node = {1e-6, 1e10}, .between_nodes = {1e-5, 1e9}, .flops_per_second = 0};
  const auto used = [&](const std::vector<int64_t>& ranks) { return link_of(cluster, ranks); };
  EXPECT_EQ(used({3}), cluster.within_node);
  EXPECT_EQ(used({0, 1, 2, 3}), cluster.within_node);
  EXPECT_EQ(used({7, 4}), cluster.within_node);
  EXPECT_EQ(used({3, 4}), cluster.between_nodes);
  EXPECT_EQ(used({0, 1, 9}), cluster.between_nodes);
}

TEST(LinkCost, CollectivesTakeTheRoundsOfTheirAlgorithms) {
  // 4 ranks, 800 bytes: each round 0.5 + 200 / 100 s.
  EXPECT_DOUBLE_EQ(reduce_scatter_seconds(link, 4, 800), 3 * 2.5);
  EXPECT_DOUBLE_EQ(all_gather_seconds(link, 4, 800), 3 * 2.5);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(link, 4, 800), 6 * 2.5);
  EXPECT_DOUBLE_EQ(broadcast_seconds(link, 4, 800), 3 * 0.5 + 8);
  EXPECT_DOUBLE_EQ(send_seconds(link, 800), 0.5 + 8);
}

TEST(LinkCost, ABarrierTakesItsLogarithm) {
  const std::vector<int> rounds = {0, 1, 2, 2, 3, 3, 3, 3, 4};
  for (size_t i = 0; i < rounds.size(); ++i) {
    EXPECT_DOUBLE_EQ(barrier_seconds(link, static_cast<int64_t>(i) + 1), rounds[i] * 0.5);
  }
}

TEST(LinkCost, OneRankPaysNothing) {
  EXPECT_EQ(all_reduce_seconds(link, 1, 800), 0);
  EXPECT_EQ(reduce_scatter_seconds(link, 1, 800), 0);
  EXPECT_EQ(all_gather_seconds(link, 1, 800), 0);
  EXPECT_EQ(broadcast_seconds(link, 1, 800), 0);
  EXPECT_EQ(barrier_seconds(link, 1), 0);
}

}  // namespace
}  // namespace copus
