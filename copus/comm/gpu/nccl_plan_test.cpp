#include "copus/comm/gpu/nccl_plan.h"

#include <gmock/gmock.h>
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
      plan.prepare({{{0, 1}}, {{2, 3}}, {{0, 2}}, {{1, 3}}, {{0, 1, 2, 3}}, {{0}}, {{2, 3}}}, {});
  EXPECT_TRUE(change.close.empty());
  EXPECT_EQ(change.open, (std::vector<std::vector<NcclUse>>{
                             {group({0, 1, 2, 3})}, {group({0, 1}), group({2, 3})}, {group({0, 2}), group({1, 3})}}));
}

GroupUse messages_of(const Ranks& ranks, GroupUse::Messages messages) {
  return {.ranks = ranks, .collectives = false, .messages = messages};
}

TEST(NcclPlan, GivesEveryLinkBetweenNeighboursItsOwn) {
  const Ranks ranks = {2, 0, 1};
  for (const auto& [messages, links] :
       {std::pair{GroupUse::Messages::line, 2}, {GroupUse::Messages::ring, 3}, {GroupUse::Messages::one_way_ring, 6}}) {
    NcclPlan plan(3, 16);
    std::set<NcclUse> opened, expected;
    for (const auto& split : plan.prepare({messages_of(ranks, messages)}, {}).open) {
      std::set<int64_t> taken;
      for (const NcclUse& use : split) {
        EXPECT_TRUE(opened.insert(use).second);
        for (const int64_t rank : use.members) EXPECT_TRUE(taken.insert(rank).second) << "twice in one split";
      }
    }
    for (int64_t link = 0; link < links; ++link) expected.insert(NcclUse::messages_of(ranks, link));
    EXPECT_EQ(opened, expected);
  }
  // With two members whose chunks alternate, the member with the first chunk is both before and after the other one.
  NcclPlan of_two(2, 16);
  EXPECT_EQ(of_two.prepare({messages_of({0, 1}, GroupUse::Messages::ring)}, {}).open.size(), 2u);
}

TEST(NcclPlan, OpensOnlyTheKindsThatAGroupUses) {
  NcclPlan plan(2, 16);
  EXPECT_TRUE(plan.prepare({{.ranks = {0, 1}, .collectives = false}}, {}).open.empty());
  EXPECT_EQ(plan.prepare({{.ranks = {0, 1}, .collectives = false, .exchanges = true}}, {}).open,
            (std::vector<std::vector<NcclUse>>{{NcclUse::exchanges_of({0, 1})}}));
}

TEST(NcclPlan, AMessageBetweenTwoMembersHasOneLink) {
  EXPECT_EQ(link_between(0, 1, 2), 0);
  EXPECT_EQ(link_between(1, 0, 2), 0);
  EXPECT_EQ(link_between(2, 1, 4), 1);
  EXPECT_EQ(link_between(0, 3, 4), 3);
  EXPECT_EQ(link_between(3, 0, 4), 3);
  EXPECT_THAT([] { link_between(0, 2, 4); }, testing::Throws<InternalError>());
}

TEST(NcclPlan, OpensOnlyWhatIsMissing) {
  NcclPlan plan(4, 8);
  plan.prepare({{{0, 1}}, {{2, 3}}}, {});
  EXPECT_TRUE(plan.prepare({{{2, 3}}, {{0, 1}}}, {}).open.empty());
  EXPECT_EQ(plan.prepare({{{0, 1}}, {{3, 2}}}, {}).open, (std::vector<std::vector<NcclUse>>{{group({3, 2})}}));
  EXPECT_TRUE(plan.prepare({{{2, 3}}}, {}).open.empty());  // still open
  EXPECT_EQ(plan.prepare({messages_of({2, 3}, GroupUse::Messages::line)}, {}).open.size(), 1u);
}

TEST(NcclPlan, ClosesWhatWasUsedLongestAgoWhereARankHasTooMany) {
  constexpr int64_t each = 100;
  const NcclPlan::Bytes bytes = {{NcclUse::Kind::collectives, each}};
  NcclPlan plan(4, 2 * each);
  plan.prepare({{{0, 1}}, {{2, 3}}}, bytes);
  plan.prepare({{{0, 2}}}, bytes);
  plan.prepare({{{0, 1}}}, bytes);
  const NcclPlan::Change change = plan.prepare({{{0, 3}}}, bytes);  // 0 had two, 3 one
  EXPECT_EQ(change.close, (std::vector<NcclUse>{group({0, 2})}));
  // Communicators in use stay open, however many there are.
  const NcclPlan::Change all = plan.prepare({{{0, 1}}, {{0, 2}}, {{0, 3}}}, bytes);
  EXPECT_TRUE(all.close.empty());
  EXPECT_EQ(all.open, (std::vector<std::vector<NcclUse>>{{group({0, 2})}}));
}

// Each rank sees the same list in a different order.
TEST(NcclPlan, IsTheSameInWhateverOrderGroupsAreListed) {
  std::mt19937_64 random(3);
  std::vector<std::vector<GroupUse>> layouts;
  for (int64_t i = 0; i < 8; ++i) {
    std::vector<GroupUse>& groups = layouts.emplace_back();
    for (int64_t g = 0; g < 6; ++g) {
      Ranks all = {0, 1, 2, 3, 4, 5, 6, 7};
      std::shuffle(all.begin(), all.end(), random);
      all.resize(1 + random() % 7);
      groups.push_back({.ranks = all,
                        .messages = random() % 3 == 0 ? GroupUse::Messages::ring : GroupUse::Messages::none,
                        .exchanges = random() % 4 == 0});
    }
  }
  const NcclPlan::Bytes bytes = {
      {NcclUse::Kind::collectives, 1}, {NcclUse::Kind::exchanges, 1}, {NcclUse::Kind::messages, 1}};
  std::vector<NcclPlan> plans(3, NcclPlan(8, 10));
  for (int64_t turn = 0; turn < 100; ++turn) {
    std::vector<GroupUse> groups = layouts[random() % layouts.size()];
    std::optional<NcclPlan::Change> expected;
    for (NcclPlan& plan : plans) {
      std::shuffle(groups.begin(), groups.end(), random);
      const NcclPlan::Change change = plan.prepare(groups, bytes);
      if (!expected) expected = change;
      EXPECT_EQ(change.close, expected->close);
      EXPECT_EQ(change.open, expected->open);
    }
  }
}

TEST(NcclPlan, RefusesGroupsThatAreNone) {
  NcclPlan plan(2, 8);
  EXPECT_THROW(plan.prepare({{{0, 0}}}, {}), InternalError);
  EXPECT_THROW(plan.prepare({{{1, 2}}}, {}), InternalError);
  EXPECT_THROW(plan.prepare({{{-1, 0}}}, {}), InternalError);
  EXPECT_THROW(plan.prepare({{{}}}, {}), InternalError);
}

}  // namespace
}  // namespace copus
