// Tests that plans deliver the whole state, from which senders, and what stays in place, also if processes leave and
// join. relayout_cost_test.cpp tests the cost of plans.
#include "copus/placement/relayout_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "copus/base/error.h"
#include "copus/placement/testing/relayout_requests.h"
#include "copus/placement/testing/relayout_simulation.h"

namespace copus {

using namespace relayout_tests;

namespace {

TEST(RelayoutPlanProperty, EveryRanksStateIsCompleteAndNothingIsReadTooLate) {
  for (uint64_t trial = 0; trial < 400; ++trial) {
    const RelayoutRequest request = random_request(trial);
    ASSERT_EQ(follow(request, plans_of_all_processes(request)), "") << trial << ": " << describe(request);
  }
}

TEST(RelayoutPlanProperty, ThereAndBackOverAThirdLayoutIsTheIdentity) {
  for (uint64_t trial = 1000; trial < 1100; ++trial) {
    RelayoutRequest request = random_request(trial);
    Draw draw(trial + 5000);
    const ParallelStrategy first = request.from;
    const ParallelStrategy third = random_strategy(request.model, first.world_size(), draw);
    const std::vector<Buffers> before = state_before(request);
    std::vector<Buffers> state = before;
    for (const ParallelStrategy& next : {request.to, third, request.to, first}) {
      request.to = next;
      const std::vector<RelayoutPlan> plans = plans_of_all_processes(request);
      Simulation simulation(request, plans, std::move(state));
      ASSERT_EQ(simulation.run(), "") << trial << ": " << describe(request);
      state = simulation.take();
      request.from = next;
    }
    ASSERT_EQ(state, before) << trial << ": " << describe(request);
  }
}

TEST(RelayoutPlanProperty, StateMovesBetweenWorldsOfAnySizes) {
  int64_t tied = 0, lost = 0, newcomers = 0;
  for (uint64_t trial = 0; trial < 150; ++trial) {
    const RelayoutRequest request = random_regrouping(trial);
    const std::vector<RelayoutPlan> plans = plans_of_all_processes(request);
    ASSERT_EQ(follow(request, plans), "") << trial << ": " << describe(request);
    for (const int64_t process : request.lost) {
      const RankPlan& plan = plans[static_cast<size_t>(process)].mine;
      ASSERT_TRUE(plan.kept.empty());
      for (const RelayoutRound& round : plan.rounds) ASSERT_TRUE(round.allocate.empty() && round.receives.empty());
    }
    tied += request.model.tie_word_embeddings && request.from.pipeline_parallel > 1 ? 1 : 0;
    lost += request.lost.empty() ? 0 : 1;
    newcomers += std::ssize(plans) > request.from.world_size() ? 1 : 0;
  }
  EXPECT_GT(tied, 20);
  EXPECT_GT(lost, 50);
  EXPECT_GT(newcomers, 50);
}

TEST(RelayoutPlan, ReplicasWhoseBucketsAreCutElsewhereGiveTheirOwnShares) {
  // The vocabulary is split into 2 and 3 rows, so ZeRO-1 splits the replicated final norm at different elements.
  ModelDescription model = small_model();
  model.vocab_size = 5;
  model.hidden_size = 256;
  model.num_layers = 2;
  const ParallelStrategy from{.data_parallel = 8, .tensor_parallel = 2, .zero_stage = 1};
  for (const ParallelStrategy& to : {ParallelStrategy{.data_parallel = 16, .zero_stage = 1},
                                     ParallelStrategy{.data_parallel = 4, .tensor_parallel = 2, .pipeline_parallel = 2},
                                     ParallelStrategy{.data_parallel = 8, .pipeline_parallel = 2, .zero_stage = 1}}) {
    const RelayoutRequest request = request_for(model, from, to);
    EXPECT_EQ(follow(request, plans_of_all_processes(request)), "") << describe(request);
  }
}

// ---- Senders ----

class NumberSet {
 public:
  void add(const Buffers& buffers) {
    for (const auto& [key, buffer] : buffers) {
      for (const int64_t number : buffer) {
        if (number >= std::ssize(has_)) has_.resize(static_cast<size_t>(number) + 1);
        has_[static_cast<size_t>(number)] = true;
      }
    }
  }
  bool contains(int64_t number) const { return number < std::ssize(has_) && has_[static_cast<size_t>(number)]; }
  // Counts the numbers other than 0, which is padding.
  int64_t size() const { return has_.empty() ? 0 : std::count(has_.begin() + 1, has_.end(), true); }

 private:
  std::vector<bool> has_;
};

// Checks that no process receives elements that it has, that another node sends no elements that a living process on
// the receiver's node has, and that lost processes send none that living ones have. Returns the number of elements from
// lost processes.
int64_t check_senders(const RelayoutRequest& request) {
  const std::vector<RelayoutPlan> plans = plans_of_all_processes(request);
  const std::vector<Buffers> before = state_before(request), after = state_after(request);
  std::vector<NumberSet> had;
  for (const Buffers& buffers : before) had.emplace_back().add(buffers);
  const auto is_lost = [&](size_t process) {
    return std::find(request.lost.begin(), request.lost.end(), static_cast<int64_t>(process)) != request.lost.end();
  };
  NumberSet living;
  for (size_t process = 0; process < had.size(); ++process) {
    if (!is_lost(process)) living.add(before[process]);
  }
  int64_t missing = 0, from_lost = 0;
  for (size_t process = 0; process < plans.size(); ++process) {
    for (const auto& [key, buffer] : after[process]) {
      missing += std::count_if(buffer.begin(), buffer.end(),
                               [&](int64_t number) { return number != 0 && !had[process].contains(number); });
    }
    for (const RelayoutRound& round : plans[process].mine.rounds) {
      for (const Transfer& transfer : round.receives) {
        const std::vector<int64_t>& given =
            before[static_cast<size_t>(transfer.sender)].at({transfer.from_bucket, transfer.kind});
        if (is_lost(static_cast<size_t>(transfer.sender))) {
          int64_t still_there = 0;
          for (const CopyRun& run : transfer.runs) {
            for (int64_t i = 0; i < run.rows * run.count; ++i) {
              const int64_t at = run.from + i / run.count * run.from_stride + i % run.count;
              still_there += living.contains(given.at(static_cast<size_t>(at))) ? 1 : 0;
            }
          }
          EXPECT_EQ(still_there, 0) << "from process " << transfer.sender;
          from_lost += transfer.num_elements();
        }
        const bool is_cut =
            transfer.kind == StateKind::weights ? request.from.cuts_weights() : request.from.cuts_optimizer();
        if (request.ranks_per_node == 0 || is_cut) continue;
        const size_t per_node = static_cast<size_t>(request.ranks_per_node);
        const size_t node = process / per_node;
        if (static_cast<size_t>(transfer.sender) / per_node == node) continue;
        const int64_t first = given.at(static_cast<size_t>(transfer.runs.front().from));
        for (size_t other = node * per_node; other < std::min(plans.size(), (node + 1) * per_node); ++other) {
          EXPECT_FALSE(had[other].contains(first) && !is_lost(other))
              << "process " << process << " could have had it from " << other;
        }
      }
    }
  }
  EXPECT_EQ(plans[0].bytes_received, 4 * missing);
  return from_lost;
}

TEST(RelayoutPlanProperty, NobodyReceivesWhatItHasNorFromAnotherNodeWhatItsOwnHas) {
  for (uint64_t trial = 2000; trial < 2100; ++trial) {
    const RelayoutRequest request = random_request(trial);
    SCOPED_TRACE(concat(trial, ": ", describe(request)));
    check_senders(request);
  }
}

TEST(RelayoutPlanProperty, LostProcessesGiveOnlyWhatNobodyElseHas) {
  int64_t with_lost = 0, gave = 0;
  for (uint64_t trial = 0; trial < 150; ++trial) {
    const RelayoutRequest request = random_regrouping(trial);
    SCOPED_TRACE(concat(trial, ": ", describe(request)));
    const int64_t from_lost = check_senders(request);
    with_lost += request.lost.empty() ? 0 : 1;
    gave += from_lost > 0 ? 1 : 0;
  }
  EXPECT_GT(with_lost, 50);
  EXPECT_GT(gave, 25);
}

// Like random_regrouping, but the lost processes of one machine are gone.
RelayoutRequest with_some_gone(uint64_t trial) {
  RelayoutRequest request = random_regrouping(trial);
  Draw draw(trial + 300000);
  std::vector<int64_t> lost;
  for (const int64_t process : request.lost) (draw.coin() ? request.gone : lost).push_back(process);
  request.lost = lost;
  return request;
}

// Every element comes from a remaining process, or else the plan reports it as missing.
TEST(RelayoutPlanProperty, NothingIsTakenFromProcessesThatAreGone) {
  int64_t complete = 0, incomplete = 0;
  for (uint64_t trial = 0; trial < 300; ++trial) {
    const RelayoutRequest request = with_some_gone(trial);
    if (request.gone.empty()) continue;
    SCOPED_TRACE(concat(trial, ": ", describe(request)));
    std::vector<Buffers> before = state_before(request);
    NumberSet left;
    for (size_t process = 0; process < before.size(); ++process) {
      if (std::ranges::count(request.gone, static_cast<int64_t>(process)) == 0) {
        left.add(before[process]);
        continue;
      }
      for (auto& [key, buffer] : before[process]) std::ranges::fill(buffer, -7);  // marks as unreadable
    }
    const std::vector<Buffers> after = state_after(request);
    bool is_all_left = true;
    for (const Buffers& buffers : after) {
      for (const auto& [key, buffer] : buffers) {
        is_all_left &=
            std::ranges::all_of(buffer, [&](int64_t number) { return number == 0 || left.contains(number); });
      }
    }
    const std::vector<RelayoutPlan> plans = plans_of_all_processes(request);
    for (const RelayoutPlan& plan : plans) {
      ASSERT_EQ(plan.missing, plans.front().missing);
      ASSERT_EQ(plan.hash, plans.front().hash);
    }
    ASSERT_EQ(plans.front().missing.empty(), is_all_left);
    ++(is_all_left ? complete : incomplete);
    if (!is_all_left) continue;
    Simulation simulation(request, plans, std::move(before));
    ASSERT_EQ(simulation.run(), "");
    ASSERT_EQ(simulation.take(), after);
  }
  EXPECT_GT(complete, 20);
  EXPECT_GT(incomplete, 20);
}

TEST(RelayoutPlan, SaysWhichPartsOfTheModelNobodyHasAnyMore) {
  // Machines of two processes with one stage each. The machine with the last three layers and the head is gone.
  ModelDescription model = small_model();
  model.num_layers = 6;
  RelayoutRequest request = request_for(model, {.data_parallel = 2, .pipeline_parallel = 2}, {.pipeline_parallel = 2});
  request.to_processes = {0, 1};
  request.gone = {2, 3};
  EXPECT_EQ(plan_relayout(request, 0).missing, (std::vector<std::string>{"layer 3", "layer 4", "layer 5", "head"}));
  // If each machine has a replica, no element is missing.
  request.gone = {1, 3};
  request.to_processes = {0, 2};
  EXPECT_TRUE(plan_relayout(request, 0).missing.empty());
  // With ZeRO each process has a share of everything, so elements are missing unless there are two copies of the
  // shares.
  request.from.zero_stage = 1;
  EXPECT_EQ(plan_relayout(request, 0).missing.size(), 8U);
  request.from = {.data_parallel = 4, .zero_stage = 1, .zero_replicas = 2};
  request.gone = {2, 3};
  request.to_processes = {0, 1};
  EXPECT_TRUE(plan_relayout(request, 0).missing.empty());
  request.gone = {1, 3};
  request.to_processes = {0, 2};
  EXPECT_EQ(plan_relayout(request, 0).missing.size(), 8U);
}

TEST(RelayoutPlan, ReplicasShareTheSending) {
  const RelayoutRequest request =
      request_for(small_model(), {.data_parallel = 4, .pipeline_parallel = 2}, {.data_parallel = 8});
  std::vector<int64_t> sent;
  for (const RelayoutPlan& plan : plans_of_all_processes(request)) {
    int64_t& elements = sent.emplace_back(0);
    for (const RelayoutRound& round : plan.mine.rounds) {
      for (const Transfer& transfer : round.sends) elements += transfer.num_elements();
    }
  }
  // In each stage, four holders serve four ranks.
  for (size_t stage = 0; stage < 2; ++stage) {
    const auto first = sent.begin() + static_cast<std::ptrdiff_t>(4 * stage);
    EXPECT_EQ(*std::min_element(first, first + 4), *std::max_element(first, first + 4));
  }
}

TEST(RelayoutPlan, MatricesThatAreCutByColumnsMoveInOneRun) {
  const RelayoutRequest request = request_for(small_model(), {.tensor_parallel = 2}, {.pipeline_parallel = 2});
  const RelayoutPlan plan = plan_relayout(request, 1);
  int64_t strided = 0;
  for (const RelayoutRound& round : plan.mine.rounds) {
    for (const Transfer& transfer : round.receives) {
      // Nine runs: query, key, value, output; gate, up, down; two norms.
      EXPECT_LE(transfer.runs.size(), 9U);
      for (const CopyRun& run : transfer.runs) {
        if (run.rows == 1) continue;
        ++strided;
        EXPECT_EQ(run.to_stride, 2 * run.from_stride);
        EXPECT_EQ(run.count, run.from_stride);
        EXPECT_EQ(run.rows, request.model.hidden_size);
      }
    }
  }
  const RankLayout layout(request, request.to, 1);
  const int64_t layers = std::count_if(layout.buckets.begin(), layout.buckets.end(),
                                       [](const BucketOffsets& bucket) { return bucket.entries.size() > 2; });
  EXPECT_EQ(strided, layers * 2 * 2 * 3) << "output and down projections, two senders, three kinds";
}

// ---- State that stays in place ----

TEST(RelayoutPlan, AnotherScheduleOrRecomputeMovesNothing) {
  const ParallelStrategy from{.data_parallel = 2, .tensor_parallel = 2, .pipeline_parallel = 2, .zero_stage = 1};
  ParallelStrategy to = from;
  to.schedule = PipelineSchedule::zb_h1;
  to.recompute = Recompute::full;
  to.sequence_parallel = true;
  const RelayoutRequest request = request_for(small_model(), from, to);
  for (const RelayoutPlan& plan : plans_of_all_processes(request)) {
    EXPECT_EQ(plan.num_rounds, 0);
    EXPECT_EQ(plan.bytes_copied, 0);
    EXPECT_EQ(plan.peak_bytes, plan.old_bytes);
    EXPECT_GE(plan.mine.kept.size(), 4U);
    for (const auto& [old_bucket, new_bucket] : plan.mine.kept) EXPECT_EQ(old_bucket, new_bucket);
  }
  EXPECT_EQ(relayout_seconds(request, {.within_node = {1, 1}, .between_nodes = {1, 1}}), 0);
}

TEST(RelayoutPlan, LayersThatStayOnTheirRankAreHandedOver) {
  // New stages have two layers: 0, 1, 4, 5 on rank 0 and 2, 3, 6, 7 on rank 1. Before, rank 0 had 0 to 3 and rank 1 had
  // 4 to 7. (This head costs little.)
  ModelDescription model = small_model();
  model.vocab_size = 4;
  const ParallelStrategy from{.pipeline_parallel = 2};
  const ParallelStrategy to{
      .pipeline_parallel = 2, .virtual_stages = 2, .schedule = PipelineSchedule::interleaved_1f1b};
  const RelayoutRequest request = request_for(model, from, to);
  const std::vector<RelayoutPlan> plans = plans_of_all_processes(request);
  ASSERT_EQ(plans[0].mine.kept.size(), 3U) << "the embedding, layers 0 and 1";
  ASSERT_EQ(plans[1].mine.kept.size(), 3U) << "layers 6 and 7, the head";
  EXPECT_EQ(plans[0].mine.kept[2].from_bucket, 2);
  EXPECT_EQ(plans[0].mine.kept[2].to_bucket, 2);
  EXPECT_EQ(plans[1].mine.kept[0].from_bucket, 2);
  EXPECT_EQ(plans[1].mine.kept[0].to_bucket, 2);
  EXPECT_EQ(plans[0].bytes_copied, plans[0].bytes_received);
}

TEST(RelayoutPlan, ReplicasBecomeStagesWithoutACopy) {
  const RelayoutRequest request = request_for(small_model(), {.data_parallel = 4}, {.pipeline_parallel = 4});
  for (const RelayoutPlan& plan : plans_of_all_processes(request)) {
    EXPECT_EQ(plan.bytes_copied, 0);
    EXPECT_EQ(plan.num_rounds, 1) << "to release the rest";
    EXPECT_EQ(plan.peak_bytes, plan.old_bytes);
  }
  // A plan without copies requires that every rank holds the whole state. With ZeRO ranks hold only shares.
  for (const int64_t zero_stage : {1, 2, 3}) {
    RelayoutRequest cut = request;
    cut.from.zero_stage = zero_stage;
    EXPECT_GT(plan_relayout(cut, 0).bytes_received, 0);
  }
}

TEST(RelayoutPlan, FromZeroOneToTwoNothingMovesAndToThreeWeightsBecomeShares) {
  const ParallelStrategy from{.data_parallel = 4, .zero_stage = 1};
  ParallelStrategy two = from, three = from;
  two.zero_stage = 2;
  three.zero_stage = 3;
  EXPECT_EQ(plan_relayout(request_for(small_model(), from, two), 0).bytes_copied, 0);
  const RelayoutPlan plan = plan_relayout(request_for(small_model(), from, three), 0);
  EXPECT_EQ(plan.bytes_received, 0) << "every rank has its own share already";
  EXPECT_LT(plan.new_bytes, plan.old_bytes);
  const RelayoutPlan back = plan_relayout(request_for(small_model(), three, from), 0);
  EXPECT_GT(back.bytes_received, 0);
}

TEST(RelayoutPlan, OfTheCopiesThatHybridShardingMakesTheNearestGives) {
  ParallelStrategy from{.data_parallel = 4, .zero_stage = 3, .zero_replicas = 2};
  RelayoutRequest request = request_for(small_model(), from, {.data_parallel = 4});
  request.ranks_per_node = 2;
  for (const RelayoutPlan& plan : plans_of_all_processes(request)) {
    for (const RelayoutRound& round : plan.mine.rounds) {
      for (const Transfer& transfer : round.receives) EXPECT_EQ(transfer.sender / 2, transfer.receiver / 2);
    }
  }
}

TEST(RelayoutPlan, ATiedCopyBecomesTheEmbedding) {
  ModelDescription model = small_model();
  model.tie_word_embeddings = true;
  const RelayoutRequest request = request_for(model, {.pipeline_parallel = 2}, {.data_parallel = 2});
  const RelayoutPlan plan = plan_relayout(request, 1);
  const RankLayout before(request, request.from, 1), after(request, request.to, 1);
  const int64_t copy = static_cast<int64_t>(before.buckets.size()) - 1;
  ASSERT_FALSE(before.buckets.back().gradient_only);
  ASSERT_TRUE(after.buckets.back().gradient_only);
  ASSERT_FALSE(plan.mine.kept.empty());
  EXPECT_EQ(plan.mine.kept[0].from_bucket, copy);
  EXPECT_EQ(plan.mine.kept[0].to_bucket, 0);
  for (const RelayoutRound& round : plan.mine.rounds) {
    EXPECT_EQ(std::count(round.allocate.begin(), round.allocate.end(), after.buckets.size() - 1), 0)
        << "has only a gradient";
  }
}

// ---- Other properties ----

TEST(RelayoutPlan, TheHashTellsPlansApart) {
  const RelayoutRequest base = request_for(small_model(), {.tensor_parallel = 2}, {.pipeline_parallel = 2});
  std::set<uint64_t> hashes{plan_relayout(base, 0).hash};
  EXPECT_TRUE(hashes.contains(plan_relayout(base, 1).hash));
  RelayoutRequest other = base;
  other.recipe = state_recipe(OptimizerKind::adamw, DType::bf16);
  EXPECT_TRUE(hashes.insert(plan_relayout(other, 0).hash).second);
  other = base;
  other.ranks_per_node = 1;
  EXPECT_TRUE(hashes.insert(plan_relayout(other, 0).hash).second);
  other = base;
  other.to.recompute = Recompute::full;
  EXPECT_TRUE(hashes.insert(plan_relayout(other, 0).hash).second);
  other = base;
  other.model.vocab_size = 39;
  EXPECT_TRUE(hashes.insert(plan_relayout(other, 0).hash).second);
  std::swap(other.from, other.to);
  EXPECT_TRUE(hashes.insert(plan_relayout(other, 0).hash).second);
}

// ---- Processes that leave and join ----

TEST(RelayoutPlan, ASurvivorKeepsItsPartAndTheLostOnesAreLeftInPeace) {
  // Two replicas of a pipeline of two stages. Process 3 ends; then the others become one pipeline and a spare.
  RelayoutRequest request =
      request_for(small_model(), {.data_parallel = 2, .pipeline_parallel = 2}, {.pipeline_parallel = 2});
  request.lost = {3};
  request.to_processes = {0, 2};
  EXPECT_EQ(plan_relayout(request, 0).bytes_copied, 0);
  EXPECT_EQ(plan_relayout(request, 2).mine.kept.size(), 5U) << "four layers and the head";
  const RankPlan spare = plan_relayout(request, 1).mine;
  ASSERT_EQ(spare.rounds.size(), 1U);
  EXPECT_EQ(spare.rounds[0].release.size(), 5U) << "the embedding and four layers";
  // If ranks 2 and 3 leave, only lost processes have their stage.
  request.lost = {2, 3};
  request.to_processes = {0, 1};
  NumberSet of_second_stage;
  of_second_stage.add(state_before(request)[2]);
  EXPECT_EQ(check_senders(request), of_second_stage.size());
}

TEST(RelayoutPlan, SharesOfALostProcessComeFromTheCopyThatLives) {
  // Two copies of ZeRO's shares, on processes 0 and 1 and on 2 and 3. One process of each copy is lost.
  RelayoutRequest request =
      request_for(small_model(), {.data_parallel = 4, .zero_stage = 3, .zero_replicas = 2}, {.data_parallel = 2});
  request.to_processes = {1, 2};
  request.lost = {0, 3};
  EXPECT_EQ(check_senders(request), 0);
  EXPECT_EQ(follow(request, plans_of_all_processes(request)), "");
}

TEST(RelayoutPlan, AReplicaThatIsCutElsewhereGivesWhatALostShareHas) {
  // The vocabulary's uneven split makes ZeRO split the two replicas of the final norm at different elements.
  ModelDescription model = small_model();
  model.vocab_size = 5;
  model.hidden_size = 256;
  model.num_layers = 2;
  RelayoutRequest request = request_for(model, {.data_parallel = 8, .tensor_parallel = 2, .zero_stage = 1},
                                        {.data_parallel = 2, .zero_stage = 1});
  for (const int64_t lost : {2, 7, 12}) {
    request.lost = {lost};
    EXPECT_EQ(follow(request, plans_of_all_processes(request)), "") << describe(request);
    EXPECT_GT(check_senders(request), 0) << describe(request);
  }
}

TEST(RelayoutPlan, AProcessInNeitherLayoutHasNothingToDo) {
  const RelayoutRequest request = request_for(small_model(), {.tensor_parallel = 2}, {.pipeline_parallel = 2});
  for (const int64_t process : {2, 7}) {
    const RelayoutPlan plan = plan_relayout(request, process);
    EXPECT_EQ(plan.hash, plan_relayout(request, 0).hash);
    EXPECT_TRUE(plan.mine.kept.empty());
    ASSERT_EQ(std::ssize(plan.mine.rounds), plan.num_rounds);
    for (const RelayoutRound& round : plan.mine.rounds) {
      EXPECT_TRUE(round.allocate.empty() && round.receives.empty() && round.sends.empty() && round.release.empty());
    }
  }
}

TEST(RelayoutPlan, WhoBecomesWhichRankIsPartOfTheHash) {
  const RelayoutRequest base = request_for(small_model(), {.data_parallel = 3}, {.pipeline_parallel = 2});
  RelayoutRequest other = base;
  other.to_processes = {0, 1};
  EXPECT_EQ(plan_relayout(base, 0).hash, plan_relayout(other, 0).hash) << "the same, in so many words";
  std::set<uint64_t> hashes{plan_relayout(base, 0).hash};
  other.lost = {2};
  EXPECT_TRUE(hashes.insert(plan_relayout(other, 0).hash).second);
  std::swap(other.lost, other.gone);
  EXPECT_TRUE(hashes.insert(plan_relayout(other, 0).hash).second);
  other.gone = {};
  other.to_processes = {1, 0};
  EXPECT_TRUE(hashes.insert(plan_relayout(other, 0).hash).second);
  other.to_processes = {0, 3};
  EXPECT_TRUE(hashes.insert(plan_relayout(other, 0).hash).second);
}

TEST(RelayoutPlan, ProcessesThatCannotBeAreOurMistake) {
  const RelayoutRequest base = request_for(small_model(), {.tensor_parallel = 2}, {.pipeline_parallel = 2});
  EXPECT_THROW(plan_relayout(base, -1), InternalError);
  const auto refused = [&](std::vector<int64_t> to_processes, std::vector<int64_t> ended) {
    RelayoutRequest request = base;
    request.to_processes = std::move(to_processes);
    request.lost = std::move(ended);
    EXPECT_THROW(plan_relayout(request, 0), InternalError);
    std::swap(request.lost, request.gone);
    EXPECT_THROW(plan_relayout(request, 0), InternalError);
  };
  refused({0}, {});
  refused({0, 0}, {});
  refused({0, -1}, {});
  refused({}, {0});
  refused({0, 2}, {2});
  refused({2, 3}, {-1});
}

}  // namespace
}  // namespace copus
