// Tests that a wrong result in one group is found and reported, and that correct results pass.
#include "copus/workshop/self_test/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <functional>
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

// A group whose results are correct except for one bit of one operation, on this rank, while `is_faulty`.
class FaultyGroup final : public WrappedCommunicator {
 public:
  FaultyGroup(Communicator& group, std::string fault, std::function<bool()> is_faulty)
      : WrappedCommunicator(group), fault_(std::move(fault)), is_faulty_(std::move(is_faulty)) {}

 private:
  Work do_start(const Operation& operation) override {
    if (operation.kind == OperationKind::send) return group().start(operation);
    if (operation.kind == OperationKind::receive) return run_in_wait(operation);
    do_run(operation);
    return Work();
  }

  void do_run(const Operation& operation) override {
    group().run(operation);
    if (!is_faulty_()) return;
    const VectorPart result = operation.output_of(rank());
    auto* const output = static_cast<std::byte*>(operation.output);
    switch (operation.kind) {
      case OperationKind::all_reduce:
        if (operation.type == DataType::bfloat16) damage("all-reduce", output);
        damage_second_call("all-reduce", operation);
        break;
      case OperationKind::reduce_scatter:
        if (result.bytes > 0) damage("reduce-scatter", output);
        damage_second_call("reduce-scatter", operation);
        break;
      case OperationKind::all_gather:
        damage("all-gather", output);
        damage_second_call("all-gather", operation);
        break;
      case OperationKind::broadcast:
        damage("broadcast", output);
        damage_second_call("broadcast", operation);
        break;
      case OperationKind::receive:
        damage("message", output);
        break;
      case OperationKind::exchange:
        if (!operation.incoming.empty()) damage("exchange", static_cast<std::byte*>(operation.incoming.front().data));
        break;
      default:
        break;
    }
    const bool is_sum = operation.kind == OperationKind::all_reduce || operation.kind == OperationKind::reduce_scatter;
    if (!is_sum || operation.type != DataType::float32 || fault_ != "sums") return;
    auto* const values = static_cast<float*>(operation.output);
    std::transform(values, values + result.bytes / size_of(operation.type), values,
                   [](float value) { return value / 2; });
  }

  void damage(const std::string& operation, std::byte* data) const {
    if (operation == fault_) data[1] ^= std::byte{0x40};
  }

  // "second all-reduce": damages the last bit in every second call on the smaller vector of random numbers.
  void damage_second_call(const std::string& operation, const Operation& done) {
    if (concat("second ", operation) != fault_ || done.count != 257 || done.type != DataType::float32) return;
    if (++calls_ % 2 == 0) *static_cast<std::byte*>(done.output) ^= std::byte{1};
  }

  const std::string fault_;
  const std::function<bool()> is_faulty_;
  int64_t calls_ = 0;
};

// A world in which one rank has a fault, in the groups of these ranks while they are prepared.
class FaultyWorld final : public WrappedWorld {
 public:
  FaultyWorld(World& world, int64_t rank, std::vector<int64_t> ranks, std::string fault)
      : WrappedWorld(world), faulty_rank_(rank), faulty_group_(std::move(ranks)), fault_(std::move(fault)) {}

  std::optional<std::string> prepare(const std::vector<GroupUse>& groups) override {
    prepared_.clear();
    for (const GroupUse& use : groups) prepared_.insert(use.ranks);
    return std::nullopt;
  }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) override {
    if (rank() != faulty_rank_ || ranks != faulty_group_) return WrappedWorld::make_group(ranks, member);
    return std::make_unique<FaultyGroup>(inner().group(ranks), fault_,
                                         [this] { return prepared_.contains(faulty_group_); });
  }

  int64_t faulty_rank_;
  std::vector<int64_t> faulty_group_;
  std::string fault_;
  std::set<std::vector<int64_t>> prepared_;
};

TEST(SelfTestGroups, FamiliesHoldEveryGroupOfEveryLayout) {
  for (const int64_t ranks : {1, 2, 6, 8}) {
    std::set<std::vector<int64_t>> expected, found;
    for (const ParallelStrategy& layout : layouts_of(ranks)) {
      EXPECT_EQ(layout.world_size(), ranks);
      const Mesh mesh(layout);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        for (const MeshAxis axis : {MeshAxis::data, MeshAxis::tensor, MeshAxis::pipeline}) {
          std::vector<int64_t> group = mesh.group(rank, {axis});
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
  EXPECT_EQ(families[2].kind, "tie");
  EXPECT_THAT(families[2].groups, ElementsAre(ElementsAre(0, 3)));
  EXPECT_EQ(families[3].kind, "data, pipeline, tensor");
  for (const GroupFamily& family : families) {
    for (const GroupUse& use : family.uses()) {
      EXPECT_TRUE(use.collectives && use.exchanges) << family.kind;
      EXPECT_EQ(use.messages, GroupUse::Messages::ring) << family.kind;
    }
  }
}

TEST(SelfTestGroups, RightResultsPass) {
  run_ranks_as_threads(4, [](World& world) {
    for (const GroupCheck& check : check_groups(at::kCPU, /*seed=*/1, world)) {
      EXPECT_EQ(check.wrong_ranks, 0);
      EXPECT_THAT(check.failures, IsEmpty());
    }
  });
}

// One element of one operation is wrong, on one rank of one group. Every rank finds this, and rank 0 reports where and
// what.
TEST(SelfTestGroups, AWrongResultIsFoundAndNamed) {
  for (const std::string fault : {"all-reduce", "reduce-scatter", "all-gather", "broadcast", "message", "exchange"}) {
    SCOPED_TRACE(fault);
    run_ranks_as_threads(4, [&](World& real_world) {
      FaultyWorld world(real_world, 3, {1, 3}, fault);
      for (const GroupCheck& check : check_groups(at::kCPU, /*seed=*/1, world)) {
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

// Sums with a different order in every call are correct, but runs do not repeat with them (NVLS).
TEST(SelfTestGroups, ResultsThatDifferBetweenTwoCallsAreFound) {
  for (const std::string fault : {"all-reduce", "reduce-scatter", "all-gather", "broadcast"}) {
    SCOPED_TRACE(fault);
    run_ranks_as_threads(2, [&](World& real_world) {
      FaultyWorld world(real_world, 1, {0, 1}, concat("second ", fault));
      const std::vector<GroupCheck> checks = check_groups(at::kCPU, /*seed=*/7, world);
      ASSERT_EQ(checks.size(), 1u);
      EXPECT_EQ(checks[0].wrong_ranks, 1);
      if (world.rank() != 0) return;
      ASSERT_EQ(checks[0].failures.size(), 1u);
      EXPECT_THAT(checks[0].failures[0], HasSubstr(concat("on rank 1: ", fault, " of 257 fp32: element 0 is ")));
      EXPECT_THAT(checks[0].failures[0], HasSubstr("in repetition 2 and was "));
      EXPECT_THAT(checks[0].failures[0], HasSubstr("--seed 7"));
    });
  }
}

// Simulates a factor that was forgotten in the sum of gradients.
TEST_F(SelfTestLayouts, WrongSumsOfGradientsAreFound) {
  run_ranks_as_threads(2, [&](World& real_world) {
    FaultyWorld world(real_world, real_world.rank(), {0, 1}, "sums");
    world.require({{.ranks = {0, 1}}});
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
