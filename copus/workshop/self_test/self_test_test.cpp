// That a wrong result in one group is found and told, and that what is right passes.
#include "copus/workshop/self_test/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <set>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"
#include "copus/comm/testing/rank_threads.h"
#include "copus/description/mesh.h"
#include "copus/model/testing/test_device.h"
#include "copus/workshop/self_test/parts.h"

namespace copus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A group whose results are right but for one bit of one operation's, on this rank.
class FaultyGroup final : public Communicator {
 public:
  FaultyGroup(Communicator& group, std::string fault)
      : Communicator(group.ranks(), group.rank()), group_(group), fault_(std::move(fault)) {}

  Work start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) override {
    group_.all_reduce(data, count, type, reduction);
    if (type == DataType::bfloat16) damage("all-reduce", data);
    if (type == DataType::float32 && fault_ == "sums") halve(data, count);
    return Work();
  }
  Work start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                            Reduction reduction) override {
    group_.start_reduce_scatter(input, output, counts, type, reduction).wait();
    const int64_t mine = counts[static_cast<size_t>(rank())];
    if (mine > 0) damage("reduce-scatter", output);
    if (type == DataType::float32 && fault_ == "sums") halve(output, mine);
    return Work();
  }
  Work start_all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override {
    group_.all_gather(input, output, counts, type);
    damage("all-gather", output);
    return Work();
  }
  Work start_broadcast(void* data, int64_t count, DataType type, int64_t root) override {
    group_.broadcast(data, count, type, root);
    damage("broadcast", data);
    return Work();
  }
  Work start_send(const void* data, int64_t count, DataType type, int64_t to) override {
    return group_.start_send(data, count, type, to);
  }
  void receive(void* data, int64_t count, DataType type, int64_t from) override {
    group_.receive(data, count, type, from);
    damage("message", data);
  }
  void exchange(std::span<const Message> outgoing, std::span<const Message> incoming) override {
    group_.exchange(outgoing, incoming);
    if (!incoming.empty()) damage("exchange", incoming.front().data);
  }
  void barrier() override { group_.barrier(); }

 private:
  void damage(const std::string& operation, void* data) const {
    if (operation == fault_) static_cast<unsigned char*>(data)[1] ^= 0x40;
  }

  static void halve(void* data, int64_t count) {
    auto* const values = static_cast<float*>(data);
    std::transform(values, values + count, values, [](float value) { return value / 2; });
  }

  Communicator& group_;
  std::string fault_;
};

// Of which one rank has a fault, in the groups of these ranks.
class FaultyWorld final : public World {
 public:
  FaultyWorld(World& world, int64_t rank, std::vector<int64_t> ranks, std::string fault)
      : world_(world), faulty_rank_(rank), faulty_group_(std::move(ranks)), fault_(std::move(fault)) {}

  int64_t rank() const override { return world_.rank(); }
  int64_t size() const override { return world_.size(); }
  Communicator& group(const std::vector<int64_t>& ranks) override {
    if (!prepared_.contains(ranks)) return world_.group(ranks);
    if (rank() != faulty_rank_ || ranks != faulty_group_) return world_.group(ranks);
    if (!group_) group_ = std::make_unique<FaultyGroup>(world_.group(ranks), fault_);
    return *group_;
  }
  void prepare(const std::vector<GroupUse>& groups) override {
    prepared_.clear();
    for (const GroupUse& use : groups) prepared_.insert(use.ranks);
  }
  Health& health() override { return world_.health(); }
  RankClock& clock() override { return world_.clock(); }

 private:
  World& world_;
  int64_t faulty_rank_;
  std::vector<int64_t> faulty_group_;
  std::string fault_;
  std::set<std::vector<int64_t>> prepared_;
  std::unique_ptr<FaultyGroup> group_;
};

TEST(SelfTestGroups, FamiliesHoldEveryGroupOfEveryLayout) {
  for (const int64_t ranks : {1, 2, 6, 8}) {
    std::set<std::vector<int64_t>> expected, found;
    for (const ParallelStrategy& layout : layouts_of(ranks)) {
      EXPECT_EQ(layout.world_size(), ranks);
      const Mesh mesh(layout);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        for (const MeshAxis axis : {MeshAxis::data, MeshAxis::tensor, MeshAxis::pipeline}) {
          std::vector<int64_t> group = mesh.group(rank, axis);
          if (axis == MeshAxis::pipeline && group.size() > 2) expected.insert({group.front(), group.back()});
          if (group.size() > 1) expected.insert(std::move(group));
        }
      }
    }
    for (const GroupFamily& family : group_families(ranks)) {
      std::set<int64_t> members;
      for (const std::vector<int64_t>& group : family.groups) {
        EXPECT_EQ(static_cast<int64_t>(group.size()), family.members());
        EXPECT_TRUE(found.insert(group).second || family.kind == "tie") << describe_ranks(group);
        for (const int64_t rank : group) {
          EXPECT_TRUE(members.insert(rank).second) << "rank " << rank << " is in two groups";
          EXPECT_EQ(*family.group_of(rank), group);
        }
      }
    }
    EXPECT_EQ(found, expected) << ranks << " ranks";
  }
}

TEST(SelfTestGroups, AreNamedInWords) {
  EXPECT_EQ(describe_ranks({0, 1, 2, 3}), "0..3");
  EXPECT_EQ(describe_ranks({1, 5, 9}), "1..9 by 4");
  EXPECT_EQ(describe_ranks({0, 4}), "0, 4");
  const std::vector<GroupFamily> families = group_families(4);
  ASSERT_EQ(families.size(), 4u);
  EXPECT_EQ(families[0].kind, "data, tensor");
  EXPECT_THAT(families[0].groups, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_EQ(families[1].kind, "data, pipeline");
  EXPECT_TRUE(families[1].neighbours_message);
  EXPECT_EQ(families[2].kind, "tie");
  EXPECT_THAT(families[2].groups, ElementsAre(ElementsAre(0, 3)));
  EXPECT_EQ(families[3].kind, "data, pipeline, tensor");
}

TEST(SelfTestGroups, RightResultsPass) {
  run_ranks_as_threads(4, [](World& world) {
    for (const GroupCheck& check : check_groups(at::kCPU, world)) {
      EXPECT_EQ(check.wrong_ranks, 0);
      EXPECT_THAT(check.failures, IsEmpty());
    }
  });
}

// One element of one operation, on one rank of one group: it is found, by every rank, and rank 0 knows who and what.
TEST(SelfTestGroups, AWrongResultIsFoundAndNamed) {
  for (const std::string fault : {"all-reduce", "reduce-scatter", "all-gather", "broadcast", "message", "exchange"}) {
    SCOPED_TRACE(fault);
    run_ranks_as_threads(4, [&](World& real_world) {
      FaultyWorld world(real_world, 3, {1, 3}, fault);
      for (const GroupCheck& check : check_groups(at::kCPU, world)) {
        const bool is_faulty = check.family.kind == "data, pipeline";
        EXPECT_EQ(check.wrong_ranks, is_faulty ? 1 : 0) << check.family.kind;
        if (!is_faulty || world.rank() != 0) {
          EXPECT_THAT(check.failures, IsEmpty());
          continue;
        }
        ASSERT_EQ(check.failures.size(), 1u);
        EXPECT_THAT(check.failures[0], HasSubstr(concat("group of ranks 1, 3, on rank 3: ", fault)));
        EXPECT_THAT(check.failures[0], HasSubstr("element 0 is "));
        EXPECT_THAT(check.failures[0], HasSubstr(", expected "));
        EXPECT_THAT(check.failures[0], HasSubstr(fault == "all-reduce" ? "7 bf16" : "7 fp32"));
      }
    });
  }
}

TEST(SelfTestGroups, BandwidthsAreThoseOfNcclsTests) {
  run_ranks_as_threads(4, [](World& world) {
    TimeLimit limit(1000, world);
    const std::vector<GroupSpeed> speeds = measure_groups(at::kCPU, limit, world);
    EXPECT_EQ(speeds.size(), 4u * 3 * 3);
    for (const GroupSpeed& speed : speeds) {
      const auto members = static_cast<double>(speed.family.members());
      EXPECT_EQ(speed.seconds.size(), speed.family.groups.size());
      EXPECT_DOUBLE_EQ(speed.algorithm_bandwidth * speed.median_seconds, static_cast<double>(speed.bytes));
      const double factor = speed.operation == "all-reduce"   ? 2 * (members - 1) / members
                            : speed.operation == "all-gather" ? (members - 1) / members
                                                              : 1;
      EXPECT_DOUBLE_EQ(speed.bus_bandwidth, factor * speed.algorithm_bandwidth);
    }
    EXPECT_FALSE(limit.was_over());
    TimeLimit over(0, world);
    EXPECT_THAT(measure_groups(at::kCPU, over, world), IsEmpty());
    EXPECT_TRUE(over.was_over());
  });
}

class SelfTestLayouts : public ::testing::Test {
 protected:
  SelfTestLayouts() {
    std::ofstream file(corpus());
    for (int i = 0; i < 600; ++i) file << "line " << i * i % 97 << " of the corpus; " << i << '\n';
  }
  std::string corpus() const { return (folder_.path() / "corpus.txt").string(); }
  TemporaryFolder folder_;
};

TEST_F(SelfTestLayouts, AllTrainAlikeAndMoveIntoEachOther) {
  for (const int64_t ranks : {3, 4}) {
    run_ranks_as_threads(ranks, [&](World& world) {
      TimeLimit limit(1000, world);
      const std::vector<LayoutCheck> layouts = check_layouts(corpus(), test_device(), limit, world);
      EXPECT_EQ(layouts.size(), 2 * layouts_of(ranks).size());
      for (const LayoutCheck& check : layouts) EXPECT_EQ(check.failure, "") << to_string(check.strategy);
      const std::vector<RelayoutCheck> moves = check_relayouts(corpus(), test_device(), limit, world);
      ASSERT_EQ(moves.size(), layouts_of(ranks).size());
      EXPECT_EQ(moves.back().report.to.strategy, moves.front().report.from.strategy);
      for (const RelayoutCheck& check : moves) EXPECT_EQ(check.failure, "");
    });
  }
}

// A factor forgotten in the sum of gradients.
TEST_F(SelfTestLayouts, WrongSumsOfGradientsAreFound) {
  run_ranks_as_threads(2, [&](World& real_world) {
    FaultyWorld world(real_world, real_world.rank(), {0, 1}, "sums");
    world.prepare({{.ranks = {0, 1}}});
    TimeLimit limit(1000, world);
    for (const LayoutCheck& check : check_layouts(corpus(), at::kCPU, limit, world)) {
      if (check.strategy.data_parallel < 2) continue;
      EXPECT_THAT(check.failure, HasSubstr(" of step ")) << to_string(check.strategy);
      EXPECT_THAT(check.failure, HasSubstr(", expected "));
    }
  });
}

}  // namespace
}  // namespace copus
