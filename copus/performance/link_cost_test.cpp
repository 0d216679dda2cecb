#include "copus/performance/link_cost.h"

#include <gtest/gtest.h>

#include <vector>

namespace copus {
namespace {

const Link slow_link{.latency_seconds = 0.5, .bytes_per_second = 100};

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

TEST(LinkCost, AGroupWithManyMembersOnEachNodeUsesManyRails) {
  const ClusterDescription cluster{.ranks_per_node = 4,
                                   .within_node = {1e-6, 1e10},
                                   .between_nodes = {1e-5, 3e9},
                                   .rails = 4,
                                   .network_by_nodes = {{{2, 1}, {4, 0.5}}}};
  const auto bandwidth = [&](const std::vector<int64_t>& ranks) { return link_of(cluster, ranks).bytes_per_second; };
  EXPECT_EQ(bandwidth({0, 4}), 3e9);
  EXPECT_EQ(bandwidth({0, 1, 4, 5}), 6e9);
  EXPECT_EQ(bandwidth({0, 1, 2, 3, 4, 5, 6, 7}), 1e10);  // limited by within_node
  EXPECT_EQ(bandwidth({0, 4, 8, 12}), 1.5e9);
  EXPECT_EQ(link_of(cluster, std::vector<int64_t>{0, 4}).latency_seconds, 1e-5);
}

TEST(LinkCost, ASeriesOfRanksIsTheirList) {
  const ClusterDescription cluster{.ranks_per_node = 4,
                                   .within_node = {1e-6, 1e12},
                                   .between_nodes = {1e-5, 1e9},
                                   .rails = 3,
                                   .network_by_nodes = {{{2, 1}, {16, 0.25}}}};
  for (int64_t first = 0; first < 8; ++first) {
    for (int64_t stride = 1; stride <= 9; ++stride) {
      for (int64_t count = 1; count <= 9; ++count) {
        std::vector<int64_t> ranks;
        for (int64_t i = 0; i < count; ++i) ranks.push_back(first + i * stride);
        EXPECT_EQ(link_of(cluster, RankSeries{first, stride, count}), link_of(cluster, ranks))
            << first << " " << stride << " " << count;
      }
    }
  }
}

TEST(LinkCost, ShortMessagesReachAShareOfTheBandwidth) {
  const Link curved{.latency_seconds = 0, .bytes_per_second = 100, .efficiency = {{{100, 0.25}, {10000, 0.75}}}};
  EXPECT_DOUBLE_EQ(send_seconds(curved, 100), 4);
  EXPECT_DOUBLE_EQ(send_seconds(curved, 1000), 20);
  EXPECT_DOUBLE_EQ(all_gather_seconds(curved, 4, 10000), 3 * 2500 / 75.0);
}

TEST(LinkCost, CollectivesTakeTheRoundsOfTheirAlgorithms) {
  // Each round of 4 ranks and 800 bytes takes 0.5 + 200 / 100 s.
  EXPECT_DOUBLE_EQ(reduce_scatter_seconds(slow_link, 4, 800), 3 * 2.5);
  EXPECT_DOUBLE_EQ(all_gather_seconds(slow_link, 4, 800), 3 * 2.5);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(slow_link, 4, 800), 6 * 2.5);
  EXPECT_DOUBLE_EQ(broadcast_seconds(slow_link, 4, 800), 3 * 0.5 + 8);
  EXPECT_DOUBLE_EQ(send_seconds(slow_link, 800), 0.5 + 8);
}

TEST(LinkCost, AllReducesTakeATreeWhereThatIsFaster) {
  Link link = slow_link;
  link.tree_seconds = 2;
  // The ring of 4 ranks has 6 latencies of 0.5 s, and the tree takes 2 s; both move 6 / 4 of the bytes.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(link, 4, 800), 2 + 12);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(link, 2, 800), 2 * 0.5 + 8);
  EXPECT_DOUBLE_EQ(reduce_scatter_seconds(link, 4, 800), 3 * 2.5);
}

TEST(LinkCost, ATreeHasALevelForEachDoublingOfTheNodesUpAndDown) {
  const ClusterDescription cluster{
      .ranks_per_node = 4, .within_node = {1e-6, 1e10}, .between_nodes = {.bytes_per_second = 1e9, .tree_seconds = 3}};
  const auto tree = [&](int64_t count) { return link_of(cluster, RankSeries{0, 1, count}).tree_seconds; };
  EXPECT_EQ(tree(4), 0);
  EXPECT_EQ(tree(8), 2 * 1 * 3);
  EXPECT_EQ(tree(12), 2 * 2 * 3);
  EXPECT_EQ(tree(16), 2 * 2 * 3);
  EXPECT_EQ(tree(20), 2 * 3 * 3);
}

TEST(LinkCost, ABarrierTakesItsLogarithm) {
  const std::vector<int> rounds = {0, 1, 2, 2, 3, 3, 3, 3, 4};
  for (size_t i = 0; i < rounds.size(); ++i) {
    EXPECT_DOUBLE_EQ(barrier_seconds(slow_link, static_cast<int64_t>(i) + 1), rounds[i] * 0.5);
  }
}

// Each message of 800 bytes takes 0.5 + 8 s.
TEST(LinkCost, ASmallAllReduceTakesItsLogarithm) {
  const std::vector<int> rounds = {0, 1, 3, 2, 4, 4, 4, 3, 5};
  for (size_t i = 0; i < rounds.size(); ++i) {
    EXPECT_DOUBLE_EQ(small_all_reduce_seconds(slow_link, static_cast<int64_t>(i) + 1, 800), rounds[i] * 8.5);
  }
  EXPECT_DOUBLE_EQ(small_all_reduce_seconds(slow_link, 8192, 800), 13 * 8.5);
}

TEST(LinkCost, OneRankPaysNothing) {
  EXPECT_EQ(all_reduce_seconds(slow_link, 1, 800), 0);
  EXPECT_EQ(small_all_reduce_seconds(Link(), 1, 800), 0);
  EXPECT_EQ(reduce_scatter_seconds(slow_link, 1, 800), 0);
  EXPECT_EQ(all_gather_seconds(slow_link, 1, 800), 0);
  EXPECT_EQ(broadcast_seconds(slow_link, 1, 800), 0);
  EXPECT_EQ(barrier_seconds(slow_link, 1), 0);
}

}  // namespace
}  // namespace copus
