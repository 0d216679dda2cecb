#include "copus/comm/gpu/nccl_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "copus/base/error.h"

namespace copus {
namespace {

using Ranks = std::vector<int64_t>;

NcclUse group(const Ranks& ranks) { return NcclUse::collectives_of(ranks); }

TEST(NcclPlan, PacksGroupsWithoutACommonRankIntoOneSplit) {
  NcclPlan plan(4, 8);
  const NcclPlan::Change change =
      plan.prepare({{{0, 1}}, {{2, 3}}, {{0, 2}}, {{1, 3}}, {{0, 1, 2, 3}}, {{0}}, {{2, 3}}});
  EXPECT_TRUE(change.close.empty());
  EXPECT_EQ(change.open, (std::vector<std::vector<NcclUse>>{
                             {group({0, 1, 2, 3})}, {group({0, 1}), group({2, 3})}, {group({0, 2}), group({1, 3})}}));
}

TEST(NcclPlan, GivesEveryDirectionBetweenNeighboursItsOwn) {
  NcclPlan plan(3, 16);
  const Ranks ring = {2, 0, 1};
  std::set<NcclUse> opened;
  for (const auto& split : plan.prepare({{ring, true}}).open) {
    std::set<int64_t> ranks;
    for (const NcclUse& use : split) {
      EXPECT_TRUE(opened.insert(use).second);
      for (const int64_t rank : use.members) EXPECT_TRUE(ranks.insert(rank).second) << "twice in one split";
    }
  }
  std::set<NcclUse> expected = {group(ring)};
  for (const auto& [from, to] : std::vector<std::pair<int64_t, int64_t>>{{2, 0}, {0, 1}, {1, 2}}) {
    expected.insert(NcclUse::messages_of(ring, from, to));
    expected.insert(NcclUse::messages_of(ring, to, from));
  }
  EXPECT_EQ(opened, expected);

  NcclPlan of_two(2, 16);
  EXPECT_EQ(of_two.prepare({{{0, 1}, true}}).open.size(), 3u);  // the group, there, and back
}

TEST(NcclPlan, OpensOnlyWhatIsMissing) {
  NcclPlan plan(4, 8);
  plan.prepare({{{0, 1}}, {{2, 3}}});
  EXPECT_TRUE(plan.prepare({{{2, 3}}, {{0, 1}}}).open.empty());
  EXPECT_EQ(plan.prepare({{{0, 1}}, {{3, 2}}}).open, (std::vector<std::vector<NcclUse>>{{group({3, 2})}}));
  EXPECT_TRUE(plan.prepare({{{2, 3}}}).open.empty());  // still open
  EXPECT_EQ(plan.prepare({{{2, 3}, true}}).open.size(), 2u);
}

TEST(NcclPlan, ClosesWhatWasUsedLongestAgoWhereARankHasTooMany) {
  NcclPlan plan(4, 2);
  plan.prepare({{{0, 1}}, {{2, 3}}});
  plan.prepare({{{0, 2}}});
  plan.prepare({{{0, 1}}});
  const NcclPlan::Change change = plan.prepare({{{0, 3}}});  // 0 had two, 3 one
  EXPECT_EQ(change.close, (std::vector<NcclUse>{group({0, 2})}));
  // What is in use stays, however much it is.
  const NcclPlan::Change all = plan.prepare({{{0, 1}}, {{0, 2}}, {{0, 3}}});
  EXPECT_TRUE(all.close.empty());
  EXPECT_EQ(all.open, (std::vector<std::vector<NcclUse>>{{group({0, 2})}}));
}

// Each rank sees the same list in an order of its own.
TEST(NcclPlan, IsTheSameInWhateverOrderGroupsAreListed) {
  std::mt19937_64 random(3);
  std::vector<std::vector<GroupUse>> layouts;
  for (int64_t i = 0; i < 8; ++i) {
    std::vector<GroupUse>& groups = layouts.emplace_back();
    for (int64_t g = 0; g < 6; ++g) {
      Ranks all = {0, 1, 2, 3, 4, 5, 6, 7};
      std::shuffle(all.begin(), all.end(), random);
      all.resize(1 + random() % 7);
      groups.push_back({all, random() % 3 == 0});
    }
  }
  std::vector<NcclPlan> plans(3, NcclPlan(8, 10));
  for (int64_t turn = 0; turn < 100; ++turn) {
    std::vector<GroupUse> groups = layouts[random() % layouts.size()];
    std::optional<NcclPlan::Change> expected;
    for (NcclPlan& plan : plans) {
      std::shuffle(groups.begin(), groups.end(), random);
      const NcclPlan::Change change = plan.prepare(groups);
      if (!expected) expected = change;
      EXPECT_EQ(change.close, expected->close);
      EXPECT_EQ(change.open, expected->open);
    }
  }
}

TEST(NcclPlan, RefusesGroupsThatAreNone) {
  NcclPlan plan(2, 8);
  EXPECT_THROW(plan.prepare({{{0, 0}}}), InternalError);
  EXPECT_THROW(plan.prepare({{{1, 2}}}), InternalError);
  EXPECT_THROW(plan.prepare({{{-1, 0}}}), InternalError);
  EXPECT_THROW(plan.prepare({{{}}}), InternalError);
}

}  // namespace
}  // namespace copus
