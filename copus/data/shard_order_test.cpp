#include "copus/data/shard_order.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace copus {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr uint64_t key = 17;
const std::vector<int64_t> sizes = {5, 0, 7, 1, 9, 3, 0, 4, 6, 2, 8, 1};  // 46 samples in ten shards

std::vector<ShardOrder::Place> places(const ShardOrder& order, uint64_t first, uint64_t count) {
  std::vector<ShardOrder::Place> result;
  for (uint64_t draw = first; draw < first + count; ++draw) result.push_back(order.place(draw));
  return result;
}

TEST(ShardOrder, AnEpochReadsEverySampleOnce) {
  const ShardOrder order(sizes, key);
  ASSERT_EQ(order.samples(), 46);
  std::set<std::vector<std::pair<int64_t, int64_t>>> orders;
  for (uint64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<std::pair<int64_t, int64_t>> read;
    for (const auto& [shard, sample] : places(order, epoch * 46, 46)) {
      ASSERT_LT(sample, sizes[static_cast<size_t>(shard)]);
      read.emplace_back(shard, sample);
    }
    orders.insert(read);
    std::ranges::sort(read);
    EXPECT_EQ(std::ranges::unique(read).begin(), read.end()) << epoch;
  }
  EXPECT_THAT(orders, SizeIs(20)) << "epochs have orders of their own";
}

TEST(ShardOrder, TheOrderIsAFunctionOfTheIndexAndTheKey) {
  const ShardOrder order(sizes, key), same(sizes, key), other(sizes, key + 1);
  const auto expected = places(order, 0, 200);
  for (uint64_t draw = 200; draw-- > 0;) EXPECT_EQ(same.place(draw), expected[draw]) << draw;
  EXPECT_NE(places(other, 0, 46), places(order, 0, 46));
}

// A resumed run continues in the order with which it began, so the order must not change between versions.
TEST(ShardOrder, TheOrderOfOldRunsStays) {
  std::vector<int64_t> shards;
  for (const ShardOrder::Place& place : places(ShardOrder(sizes, key), 40, 10)) shards.push_back(place.shard);
  EXPECT_THAT(shards, ElementsAre(2, 2, 4, 9, 11, 9, 10, 2, 10, 2));
}

TEST(ShardOrder, ASampleIsReadWithinTheWindowOfItsShard) {
  const ShardOrder order(sizes, key);
  std::map<int64_t, std::pair<uint64_t, uint64_t>> first_and_last;  // by shard
  for (uint64_t draw = 0; draw < 46; ++draw) {
    auto& [first, last] = first_and_last.try_emplace(order.place(draw).shard, draw, draw).first->second;
    last = draw;
  }
  const std::vector<ShardOrder::Need> needs = order.needs(0, 10);
  ASSERT_THAT(needs, SizeIs(10));
  std::set<uint64_t> windows;
  for (size_t i = 0; i < needs.size(); ++i) {
    windows.insert(needs[i].first_draw);
    const auto& [first, last] = first_and_last.at(needs[i].shard);
    EXPECT_GE(first, needs[i].first_draw) << i;
    const size_t next = (i / 4 + 1) * 4;
    EXPECT_LT(last, next < needs.size() ? needs[next].first_draw : 46) << i;
  }
  EXPECT_THAT(windows, SizeIs(3)) << "four, four and two shards";
  bool mixes = false;
  for (uint64_t draw = 0; draw + 2 < 46; ++draw) {
    mixes |= order.place(draw).shard == order.place(draw + 2).shard &&
             order.place(draw).shard != order.place(draw + 1).shard;
  }
  EXPECT_TRUE(mixes);
}

TEST(ShardOrder, ListsTheShardsThatAreNeededNext) {
  const ShardOrder order(sizes, key);
  for (uint64_t draw = 0; draw < 3 * 46; ++draw) {
    const std::vector<ShardOrder::Need> needs = order.needs(draw, 5);
    ASSERT_THAT(needs, SizeIs(5));
    EXPECT_LE(needs[0].first_draw, draw);
    std::set<int64_t> listed;
    for (const ShardOrder::Need& need : needs) EXPECT_TRUE(listed.insert(need.shard).second);
    for (uint64_t next = draw; next < needs[4].first_draw; ++next) {
      EXPECT_TRUE(listed.contains(order.place(next).shard)) << "sample " << next << " from " << draw;
    }
  }
  EXPECT_THAT(order.needs(45, 1000), SizeIs(10)) << "each shard once";
}

}  // namespace
}  // namespace copus
