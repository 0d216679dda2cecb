#include "copus/train/step/rank_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/gpu/nccl_plan.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/description/mesh.h"
#include "copus/performance/communicators.h"
#include "copus/placement/sharding.h"
#include "copus/train/recording/step_recorder.h"

namespace copus {
namespace {

using Ranks = std::vector<int64_t>;

// A communicator in which nothing is sent.
class SilentCommunicator final : public Communicator {
 public:
  SilentCommunicator(Ranks ranks, int64_t rank) : Communicator(std::move(ranks), rank) {}

 private:
  Work do_start(const Operation&) override { return {}; }
  void do_run(const Operation&) override {}
};

// One rank's world, which records requested groups.
class NotingWorld final : public World {
 public:
  NotingWorld(int64_t rank, int64_t size) : World(rank, size, nullptr) {}
  Health& health() override { return inner_->health(); }
  RankClock& clock() override { return inner_->clock(); }

  // Requested groups of at least two ranks.
  const std::set<Ranks>& asked() const { return asked_; }

 private:
  std::unique_ptr<Communicator> make_group(const Ranks& ranks, int64_t member) override {
    if (ranks.size() > 1) asked_.insert(ranks);
    return std::make_unique<SilentCommunicator>(ranks, member);
  }

  std::unique_ptr<World> inner_ = single_rank_world();
  std::set<Ranks> asked_;
};

ModelDescription model_of_16_layers() {
  ModelDescription model;
  model.vocab_size = model.hidden_size = model.intermediate_size = 64;
  model.num_layers = 16;
  model.num_heads = model.num_kv_heads = model.head_dim = 8;
  return model;
}

struct Asked {
  std::set<Ranks> groups;
  std::set<Ranks> with_messages;
};

// Requests the groups that one rank uses in a run: those of RankGroups' constructor, the replicas of the rank's partial
// parameters and, if it holds one of two copies, the tie (gradient_reduction.h, gradient_probe.h).
void ask(const ModelDescription& model, const ParallelStrategy& strategy, int64_t rank, Asked& asked) {
  NotingWorld world(rank, strategy.world_size());
  StepRecorder recorder(world);
  RankGroups groups(world, strategy, recorder);
  if (groups.pipeline().size() > 1) asked.with_messages.insert(groups.pipeline().ranks());
  int64_t copies = 0;
  for (const LocalParameter& parameter : list_local_parameters(model, place(model, strategy, 64, rank))) {
    if (parameter.sharding.partial) groups.replicas(parameter.sharding);
    if (parameter.sharding.tied) ++copies;
  }
  if (copies == 1) asked.with_messages.insert(groups.tie().ranks());
  const std::set<Ranks> of_rank = world.asked();
  asked.groups.insert(of_rank.begin(), of_rank.end());
}

// With NCCL, groups open exactly the predicted communicators. The number of splits is at most one more than the number
// of communicators of any rank.
void check_counts(const ModelDescription& model, const ParallelStrategy& strategy) {
  const int64_t size = strategy.world_size();
  NcclPlan plan(size, 0);
  const NcclPlan::Change change = plan.prepare(groups_of(model, strategy, 64), {});
  std::vector<CommunicatorCounts> opened(size);
  for (const std::vector<NcclUse>& split : change.open) {
    for (const NcclUse& use : split) {
      for (const int64_t rank : use.members) {
        CommunicatorCounts& counts = opened[rank];
        ++(use.kind == NcclUse::Kind::collectives ? counts.collectives
           : use.kind == NcclUse::Kind::exchanges ? counts.exchanges
                                                  : counts.messages);
      }
    }
  }
  const Mesh mesh(strategy);
  int64_t most = 0;
  for (int64_t rank = 0; rank < size; ++rank) {
    EXPECT_EQ(opened[rank], count_communicators(model, strategy, mesh.coordinates(rank).pipeline)) << "rank " << rank;
    most = std::max(most, opened[rank].collectives + opened[rank].exchanges + opened[rank].messages);
  }
  EXPECT_LE(std::ssize(change.open), most + 1);
}

void check_layout(const ModelDescription& model, const ParallelStrategy& strategy) {
  if (infeasible_reason(model, {.strategy = strategy, .global_batch = 64, .micro_batch = 1}, 64)) return;
  SCOPED_TRACE(to_string(strategy) + (strategy.sequence_parallel ? " sequence-parallel" : "") +
               (model.tie_word_embeddings ? " tied" : "") + " kv heads " + std::to_string(model.num_kv_heads));
  Asked asked;
  for (int64_t rank = 0; rank < strategy.world_size(); ++rank) ask(model, strategy, rank, asked);
  std::set<Ranks> listed, with_messages;
  for (const GroupUse& group : groups_of(model, strategy, 64)) {
    EXPECT_TRUE(listed.insert(group.ranks).second) << "twice in the list";
    if (group.messages != GroupUse::Messages::none) with_messages.insert(group.ranks);
  }
  check_counts(model, strategy);
  EXPECT_EQ(listed, asked.groups);
  EXPECT_EQ(with_messages, asked.with_messages);
}

// Checks the layout with all possible numbers of ZeRO copies.
void check_replicas(const ModelDescription& model, ParallelStrategy strategy) {
  strategy.zero_stage = 1;
  for (strategy.zero_replicas = 2; strategy.zero_replicas <= strategy.data_parallel; ++strategy.zero_replicas) {
    if (strategy.data_parallel % strategy.zero_replicas == 0) check_layout(model, strategy);
  }
}

TEST(GroupsOf, AreThoseThatTheRanksAskForInEveryLayout) {
  ModelDescription model = model_of_16_layers();
  int64_t layouts = 0;
  for (int64_t d = 1; d <= 8; ++d) {
    for (int64_t t = 1; d * t <= 8; ++t) {
      for (int64_t p = 1; d * t * p <= 8; ++p) {
        for (const int64_t kv_heads : {1, 2, 4, 8}) {
          for (const bool tied : {false, true}) {
            for (const bool sequence_parallel : {false, true}) {
              model.num_kv_heads = kv_heads;
              model.tie_word_embeddings = tied;
              ParallelStrategy strategy{.data_parallel = d, .tensor_parallel = t, .pipeline_parallel = p};
              strategy.sequence_parallel = sequence_parallel;
              check_layout(model, strategy);
              check_replicas(model, strategy);
              if (p == 1) continue;
              strategy.virtual_stages = 2;
              strategy.schedule = PipelineSchedule::interleaved_1f1b;
              check_layout(model, strategy);
            }
          }
        }
        ++layouts;
      }
    }
  }
  EXPECT_EQ(layouts, 38);
}

TEST(GroupsOf, BeginWithEveryone) {
  const ParallelStrategy strategy{.data_parallel = 2, .tensor_parallel = 2, .pipeline_parallel = 2};
  EXPECT_EQ(groups_of(model_of_16_layers(), strategy, 64).front().ranks, (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_TRUE(groups_of(model_of_16_layers(), {}, 64).empty());
}

}  // namespace
}  // namespace copus
