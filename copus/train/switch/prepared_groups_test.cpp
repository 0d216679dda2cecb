// Tests that a trainer has the groups of its layout connected before it requests them: at the beginning, in a switch,
// and after branches.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "copus/base/testing/test_support.h"
#include "copus/comm/testing/rank_threads.h"
#include "copus/train/run/run_branches.h"
#include "copus/train/testing/test_layouts.h"
#include "copus/train/trainer/trainer.h"

namespace copus {
namespace {

using namespace layouts;

using GroupLists = std::set<std::vector<int64_t>>;

// A group that must be in the latest prepared list whenever it is used.
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

// A world whose groups, except everyone's, must be in the latest prepared list.
class StrictWorld final : public WrappedWorld {
 public:
  explicit StrictWorld(World& world) : WrappedWorld(world) {}
  std::optional<std::string> prepare(const std::vector<GroupUse>& groups) override {
    ++preparations_;
    if (lacks_memory_) return "there is no memory for connections";
    prepared_.clear();
    for (const GroupUse& group : groups) prepared_.insert(group.ranks);
    return std::nullopt;
  }
  void use_up_memory() { lacks_memory_ = true; }

  int64_t preparations() const { return preparations_; }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) override {
    if (ranks.size() == 1 || std::ssize(ranks) == size()) return WrappedWorld::make_group(ranks, member);
    EXPECT_TRUE(prepared_.contains(ranks)) << "a group that was not prepared";
    return std::make_unique<StrictGroup>(inner().group(ranks), prepared_);
  }

  GroupLists prepared_;
  int64_t preparations_ = 0;
  bool lacks_memory_ = false;
};

class PreparedGroups : public testing::Test {
 protected:
  PreparedGroups() {
    write_corpus(folder_.path() / "corpus.txt");
    begin_ = small_run(folder_.path() / "corpus.txt");
    begin_.model.hidden_size = 32;
    begin_.model.intermediate_size = 48;
    begin_.model.num_layers = 4;
    begin_.model.head_dim = 8;
    begin_.train.sequence_length = 16;
    begin_.train.max_steps = 1000;
    begin_.adapt.policy = PolicyKind::fixed;
    begin_ = with_changes(begin_, {tied, ranks(2, 1, 2)});
    end_ = with_changes(begin_, {ranks(1, 2, 2), sequence_parallel});
  }

  // Trains four ranks that will switch from begin_ to end_ after step 2. Calls `body` when the switch is due, and
  // `before` while only rank 0 knows of it.
  void train_until_the_switch(
      const std::function<void(Trainer&, StrictWorld&)>& body,
      const std::function<void(StrictWorld&)>& before = [](StrictWorld&) {}) const {
    run_ranks_as_threads(
        4,
        [&](World& inner) {
          kernels::set_num_threads(1);
          StrictWorld world(inner);
          const Dataset dataset = open_data(begin_);
          Trainer trainer(begin_, dataset, at::kCPU, world);
          EXPECT_EQ(world.preparations(), 1);
          if (world.rank() == 0) {
            trainer.announce(
                {.configuration = configuration_of(end_), .commit_after_step = 2, .rate_factor = 1, .inputs_hash = 0});
          }
          before(world);
          trainer.step();
          EXPECT_EQ(world.preparations(), 2);  // of both layouts together
          EXPECT_FALSE(trainer.switch_if_due());
          trainer.step();
          EXPECT_EQ(world.preparations(), 2);
          body(trainer, world);
        },
        60);
  }

  const TemporaryFolder folder_;
  RunConfig begin_, end_;
};

TEST_F(PreparedGroups, ComeBeforeTheModelsThatUseThem) {
  train_until_the_switch([](Trainer& trainer, StrictWorld& world) {
    const auto report = trainer.switch_if_due();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->outcome, SwitchReport::Outcome::moved);
    EXPECT_EQ(world.preparations(), 3);  // of the new layout only, once the state has moved
    trainer.step();
  });
}

// Branches measure no dual norms, so they do not open the groups of all ranks of a pipeline rank. The run needs these
// groups in its next step.
TEST_F(PreparedGroups, AreTheRunsAgainAfterBranches) {
  RunConfig run = with_changes(begin_, {ranks(2, 2, 2), dual_norms});
  run.data.held_out_fraction = 0.1;
  run_ranks_as_threads(
      8,
      [&](World& inner) {
        kernels::set_num_threads(1);
        StrictWorld world(inner);
        const Dataset dataset = open_data(run);
        Trainer trunk(run, dataset, at::kCPU, world);
        const StepRecord record = trunk.step();
        const auto go_on = [] { return StopReason::none; };
        const CalibrationRequest one_branch{.batch = run.train.global_batch, .repetitions = 1};
        const BranchesEnd end = train_branches(run, one_branch, record, trunk, dataset, world, go_on, [] {});
        EXPECT_EQ(end.calibration.branches, 1);
        trunk.step();
      },
      60);
}

// On a full GPU, groups of the new layout cannot be opened. Training continues in the old one.
TEST_F(PreparedGroups, ThatCannotBeHadAreAVeto) {
  const auto body = [](Trainer& trainer, StrictWorld& world) {
    const double before = trainer.state().elapsed_seconds;
    const auto report = trainer.switch_if_due();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->outcome, SwitchReport::Outcome::vetoed);
    EXPECT_EQ(report->reason, "there is no memory for connections");
    EXPECT_TRUE(report->is_lack_of_memory);
    EXPECT_GT(report->pause_seconds, 0) << "for which training stood still to connect them";
    EXPECT_DOUBLE_EQ(trainer.state().elapsed_seconds, before + report->pause_seconds);
    EXPECT_EQ(world.preparations(), 2);
    trainer.step();
  };
  train_until_the_switch(body, [](StrictWorld& world) { world.use_up_memory(); });
}

}  // namespace
}  // namespace copus
