// Tests that a trainer has the groups of its layout connected before it asks for them, at the beginning and when it
// switches.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "copus/base/testing/test_support.h"
#include "copus/comm/testing/rank_threads.h"
#include "copus/train/testing/test_layouts.h"
#include "copus/train/trainer.h"

namespace copus {
namespace {

using namespace layouts;

using GroupLists = std::set<std::vector<int64_t>>;

// A group that has to be in the latest prepared list whenever it is used.
class StrictGroup final : public WrappedCommunicator {
 public:
  StrictGroup(Communicator& group, const GroupLists& prepared) : WrappedCommunicator(group), prepared_(prepared) {}

 private:
  Work do_start(const Operation& operation) override {
    EXPECT_TRUE(prepared_.contains(ranks())) << to_string(operation.kind) << " in a group that is not prepared";
    return group().start(operation);
  }
  void do_run(const Operation& operation) override {
    EXPECT_TRUE(prepared_.contains(ranks())) << to_string(operation.kind) << " in a group that is not prepared";
    group().run(operation);
  }

  const GroupLists& prepared_;
};

// A world in which every group but everyone's has to be in the latest prepared list.
class StrictWorld final : public WrappedWorld {
 public:
  explicit StrictWorld(World& world) : WrappedWorld(world) {}
  void prepare(const std::vector<GroupUse>& groups) override {
    ++preparations_;
    prepared_.clear();
    for (const GroupUse& group : groups) prepared_.insert(group.ranks);
  }

  int64_t preparations() const { return preparations_; }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) override {
    if (ranks.size() == 1 || std::ssize(ranks) == size()) return WrappedWorld::make_group(ranks, member);
    EXPECT_TRUE(prepared_.contains(ranks)) << "a group that was not prepared";
    return std::make_unique<StrictGroup>(inner().group(ranks), prepared_);
  }

  GroupLists prepared_;
  int64_t preparations_ = 0;
};

TEST(PreparedGroups, ComeBeforeTheModelsThatUseThem) {
  const TemporaryFolder folder;
  write_corpus(folder.path() / "corpus.txt");
  RunConfig begin = small_run(folder.path() / "corpus.txt");
  begin.model.hidden_size = 32;
  begin.model.intermediate_size = 48;
  begin.model.num_layers = 4;
  begin.model.head_dim = 8;
  begin.train.sequence_length = 16;
  begin.train.max_steps = 1000;
  begin.adapt.policy = PolicyKind::fixed;
  begin = with_changes(begin, {tied, ranks(2, 1, 2)});
  const RunConfig end = with_changes(begin, {ranks(1, 2, 2), sequence_parallel});
  run_ranks_as_threads(
      4,
      [&](World& inner) {
        kernels::set_num_threads(1);
        StrictWorld world(inner);
        const Dataset dataset = open_data(begin);
        Trainer trainer(begin, dataset, at::kCPU, world);
        EXPECT_EQ(world.preparations(), 1);
        if (world.rank() == 0) {
          trainer.announce(
              {.configuration = configuration_of(end), .commit_after_step = 2, .rate_factor = 1, .inputs_hash = 0});
        }
        trainer.step();
        EXPECT_FALSE(trainer.switch_if_due());
        trainer.step();
        const auto report = trainer.switch_if_due();
        ASSERT_TRUE(report.has_value());
        EXPECT_EQ(report->outcome, SwitchReport::Outcome::moved);
        EXPECT_EQ(world.preparations(), 2);
        trainer.step();
      },
      60);
}

}  // namespace
}  // namespace copus
