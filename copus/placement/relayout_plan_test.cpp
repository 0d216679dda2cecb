// Tests that plans deliver the whole state, from whom, and what they leave in place; relayout_cost_test.cpp tests what
// they cost.
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
    ASSERT_EQ(follow(request, plans_of_all_ranks(request)), "") << trial << ": " << describe(request);
  }
}

TEST(RelayoutPlanProperty, ThereAndBackOverAThirdLayoutIsTheIdentity) {
  for (uint64_t trial = 1000; trial < 1100; ++trial) {
    RelayoutRequest request = random_request(trial);
    Draw draw(trial + 5000);
    const ParallelStrategy first = request.from;
    const ParallelStrategy third = random_strategy(request.model, first.world_size(), draw);
    const std::vector<Buffers> before = state_of_all_ranks(request, first);
    std::vector<Buffers> state = before;
    for (const ParallelStrategy& next : {request.to, third, request.to, first}) {
      request.to = next;
      const std::vector<RelayoutPlan> plans = plans_of_all_ranks(request);
      Simulation simulation(request, plans, std::move(state));
      ASSERT_EQ(simulation.run(), "") << trial << ": " << describe(request);
      state = simulation.take();
      request.from = next;
    }
    ASSERT_EQ(state, before) << trial << ": " << describe(request);
  }
}

TEST(RelayoutPlan, ReplicasWhoseBucketsAreCutElsewhereGiveTheirOwnShares) {
  // The vocabulary is cut into parts of 2 and 3 rows; beside them ZeRO-1 cuts the replicated final norm at different
  // elements.
  ModelDescription model = small_model();
  model.vocab_size = 5;
  model.hidden_size = 256;
  model.num_layers = 2;
  const ParallelStrategy from{.data_parallel = 8, .tensor_parallel = 2, .zero_stage = 1};
  for (const ParallelStrategy& to : {ParallelStrategy{.data_parallel = 16, .zero_stage = 1},
                                     ParallelStrategy{.data_parallel = 4, .tensor_parallel = 2, .pipeline_parallel = 2},
                                     ParallelStrategy{.data_parallel = 8, .pipeline_parallel = 2, .zero_stage = 1}}) {
    const RelayoutRequest request = request_for(model, from, to);
    EXPECT_EQ(follow(request, plans_of_all_ranks(request)), "") << describe(request);
  }
}

// ---- Senders ----

std::set<int64_t> numbers_in(const Buffers& buffers) {
  std::set<int64_t> numbers;
  for (const auto& [key, buffer] : buffers) numbers.insert(buffer.begin(), buffer.end());
  return numbers;
}

TEST(RelayoutPlanProperty, NobodyReceivesWhatItHasNorFromAnotherNodeWhatItsOwnHas) {
  for (uint64_t trial = 2000; trial < 2100; ++trial) {
    const RelayoutRequest request = random_request(trial);
    SCOPED_TRACE(concat(trial, ": ", describe(request)));
    const std::vector<RelayoutPlan> plans = plans_of_all_ranks(request);
    const std::vector<Buffers> before = state_of_all_ranks(request, request.from);
    const std::vector<Buffers> after = state_of_all_ranks(request, request.to);
    std::vector<std::set<int64_t>> had;
    for (const Buffers& buffers : before) had.push_back(numbers_in(buffers));
    int64_t missing = 0;
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      for (const auto& [key, buffer] : after[rank]) {
        missing += std::count_if(buffer.begin(), buffer.end(),
                                 [&](int64_t number) { return number != 0 && !had[rank].contains(number); });
      }
      for (const RelayoutRound& round : plans[rank].mine.rounds) {
        for (const Transfer& transfer : round.receives) {
          const bool is_cut =
              transfer.kind == StateKind::weights ? request.from.cuts_weights() : request.from.cuts_optimizer();
          if (request.ranks_per_node == 0 || is_cut) continue;
          const size_t per_node = static_cast<size_t>(request.ranks_per_node);
          const size_t node = rank / per_node;
          if (static_cast<size_t>(transfer.sender) / per_node == node) continue;
          const int64_t first = before[static_cast<size_t>(transfer.sender)]
                                    .at({transfer.from_bucket, transfer.kind})
                                    .at(static_cast<size_t>(transfer.runs.front().from));
          for (size_t other = node * per_node; other < std::min(plans.size(), (node + 1) * per_node); ++other) {
            EXPECT_FALSE(had[other].contains(first)) << "rank " << rank << " could have had it from " << other;
          }
        }
      }
    }
    EXPECT_EQ(plans[0].bytes_received, 4 * missing);
  }
}

TEST(RelayoutPlan, ReplicasShareTheSending) {
  const RelayoutRequest request =
      request_for(small_model(), {.data_parallel = 4, .pipeline_parallel = 2}, {.data_parallel = 8});
  std::vector<int64_t> sent;
  for (const RelayoutPlan& plan : plans_of_all_ranks(request)) {
    int64_t& elements = sent.emplace_back(0);
    for (const RelayoutRound& round : plan.mine.rounds) {
      for (const Transfer& transfer : round.sends) elements += transfer.num_elements();
    }
  }
  // Each stage's four holders serve four ranks that lack it.
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

// ---- What stays where it is ----

TEST(RelayoutPlan, AnotherScheduleOrRecomputeMovesNothing) {
  const ParallelStrategy from{.data_parallel = 2, .tensor_parallel = 2, .pipeline_parallel = 2, .zero_stage = 1};
  ParallelStrategy to = from;
  to.schedule = PipelineSchedule::zb_h1;
  to.recompute = Recompute::full;
  to.sequence_parallel = true;
  const RelayoutRequest request = request_for(small_model(), from, to);
  for (const RelayoutPlan& plan : plans_of_all_ranks(request)) {
    EXPECT_EQ(plan.num_rounds, 0);
    EXPECT_EQ(plan.bytes_copied, 0);
    EXPECT_EQ(plan.peak_bytes, plan.old_bytes);
    EXPECT_GE(plan.mine.kept.size(), 4U);
    for (const auto& [old_bucket, new_bucket] : plan.mine.kept) EXPECT_EQ(old_bucket, new_bucket);
  }
  EXPECT_EQ(relayout_seconds(request, {.within_node = {1, 1}, .between_nodes = {1, 1}}), 0);
}

TEST(RelayoutPlan, LayersThatStayOnTheirRankAreHandedOver) {
  // The new stages have two layers each: 0, 1, 4, 5 lie on rank 0 and 2, 3, 6, 7 on rank 1; before, 0 to 3 and 4 to 7.
  // (The head counts little here.)
  ModelDescription model = small_model();
  model.vocab_size = 4;
  const ParallelStrategy from{.pipeline_parallel = 2};
  const ParallelStrategy to{
      .pipeline_parallel = 2, .virtual_stages = 2, .schedule = PipelineSchedule::interleaved_1f1b};
  const RelayoutRequest request = request_for(model, from, to);
  const std::vector<RelayoutPlan> plans = plans_of_all_ranks(request);
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
  for (const RelayoutPlan& plan : plans_of_all_ranks(request)) {
    EXPECT_EQ(plan.bytes_copied, 0);
    EXPECT_EQ(plan.num_rounds, 1) << "to release the rest";
    EXPECT_EQ(plan.peak_bytes, plan.old_bytes);
  }
  // A plan without copies needs every rank to hold the whole state; the shares of ZeRO are not the whole.
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
  for (const RelayoutPlan& plan : plans_of_all_ranks(request)) {
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

// ---- The rest ----

TEST(RelayoutPlan, TheHashTellsPlansApart) {
  const RelayoutRequest base = request_for(small_model(), {.tensor_parallel = 2}, {.pipeline_parallel = 2});
  std::set<uint64_t> hashes{plan_relayout(base, 0).hash};
  EXPECT_TRUE(hashes.contains(plan_relayout(base, 1).hash));
  RelayoutRequest other = base;
  other.weights_are_master = false;
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

TEST(RelayoutPlan, OtherWorldsAndRanksAreOurMistake) {
  const RelayoutRequest request = request_for(small_model(), {.tensor_parallel = 2}, {.pipeline_parallel = 2});
  EXPECT_THROW(plan_relayout(request, 2), InternalError);
  EXPECT_THROW(plan_relayout(request_for(small_model(), {.tensor_parallel = 2}, {}), 0), InternalError);
}

}  // namespace
}  // namespace copus
