// Tests the cost of plans: additional memory, rounds, and seconds on a cluster's links.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "copus/placement/relayout_plan.h"
#include "copus/placement/testing/relayout_requests.h"
#include "copus/placement/testing/relayout_simulation.h"

namespace copus {

using namespace relayout_tests;

namespace {

// ---- Memory ----

// Returns the bytes of all kinds of a bucket's state.
int64_t bucket_bytes(const RelayoutRequest& request, const RankLayout& layout, size_t bucket) {
  int64_t elements = 0;
  if (layout.buckets[bucket].gradient_only) return 0;
  for (const StateKind kind : kinds_of(request)) elements += layout.stretch(static_cast<int64_t>(bucket), kind).size();
  return 4 * elements;
}

// Returns the peak bytes of any rank if contents move one by one in the order of the model.
int64_t peak_in_canonical_order(const RelayoutRequest& request) {
  // Contents, named by their first parameter, in the order of the model; with ranks and bytes.
  std::map<std::string, size_t> order;
  for (const ParameterInfo& info : list_parameters(request.model)) order.try_emplace(info.name, order.size());
  std::map<size_t, std::vector<std::pair<size_t, int64_t>>> old_bytes, new_bytes;
  std::vector<int64_t> live(static_cast<size_t>(request.from.world_size()), 0);
  for (size_t rank = 0; rank < live.size(); ++rank) {
    for (const bool is_new : {false, true}) {
      const RankLayout layout(request, is_new ? request.to : request.from, static_cast<int64_t>(rank));
      for (size_t b = 0; b < layout.buckets.size(); ++b) {
        const auto first = static_cast<size_t>(layout.buckets[b].entries.front().parameter);
        const int64_t bytes = bucket_bytes(request, layout, b);
        (is_new ? new_bytes : old_bytes)[order.at(layout.parameters[first].info.name)].emplace_back(rank, bytes);
        if (!is_new) live[rank] += bytes;
      }
    }
  }
  int64_t peak = 0;
  for (const auto& [content, allocated] : new_bytes) {
    for (const auto& [rank, bytes] : allocated) live[rank] += bytes;
    peak = std::max(peak, *std::max_element(live.begin(), live.end()));
    for (const auto& [rank, bytes] : old_bytes.at(content)) live[rank] -= bytes;
  }
  return peak;
}

TEST(RelayoutPlan, TensorParallelismBecomesAPipelineInLittleMoreMemory) {
  ModelDescription model = small_model();
  model.num_layers = 32;
  model.hidden_size = 64;
  model.num_kv_heads = 8;
  for (const auto& [ranks, naive_at_least, ours_at_most] : {std::tuple{4, 1.6, 1.13}, std::tuple{8, 1.7, 1.26}}) {
    const ParallelStrategy tensor{.tensor_parallel = ranks}, pipeline{.pipeline_parallel = ranks};
    for (const RelayoutRequest& request :
         {request_for(model, tensor, pipeline), request_for(model, pipeline, tensor)}) {
      const RelayoutPlan plan = plan_relayout(request, 0);
      const auto at_rest = static_cast<double>(std::max(plan.old_bytes, plan.new_bytes));
      EXPECT_GT(static_cast<double>(peak_in_canonical_order(request)), naive_at_least * at_rest) << describe(request);
      EXPECT_LT(static_cast<double>(plan.peak_bytes), ours_at_most * at_rest) << describe(request);
    }
  }
}

TEST(RelayoutPlanProperty, OneBucketBesideTheStateIsEnoughButForRareShapes) {
  int64_t more = 0;
  for (uint64_t trial = 3000; trial < 4000; ++trial) {
    const RelayoutRequest request = random_request(trial);
    const RelayoutPlan plan = plan_relayout(request, 0);
    int64_t largest = 0;
    for (const ParallelStrategy& strategy : {request.from, request.to}) {
      for (int64_t rank = 0; rank < strategy.world_size(); ++rank) {
        const RankLayout layout(request, strategy, rank);
        for (size_t b = 0; b < layout.buckets.size(); ++b) {
          largest = std::max(largest, bucket_bytes(request, layout, b));
        }
      }
    }
    const int64_t at_rest = std::max(plan.old_bytes, plan.new_bytes);
    const int64_t beside = plan.peak_bound_bytes - at_rest;
    ASSERT_EQ(beside % largest, 0) << trial;
    ASSERT_LE(beside / largest, request.from.world_size()) << trial << ": " << describe(request);
    ASSERT_LE(plan.peak_bytes, plan.peak_bound_bytes) << trial;
    if (beside > std::max(largest, at_rest / 8)) ++more;
  }
  EXPECT_LE(more, 10);
}

TEST(RelayoutPlan, SmallBucketsShareRounds) {
  ModelDescription model = small_model();
  model.num_layers = 128;
  model.hidden_size = 64;
  model.num_kv_heads = 8;
  const RelayoutPlan plan = plan_relayout(request_for(model, {.tensor_parallel = 4}, {.pipeline_parallel = 4}), 0);
  EXPECT_LE(plan.num_rounds, 16);
  EXPECT_LE(plan.peak_bound_bytes, std::max(plan.old_bytes, plan.new_bytes) * 9 / 8);
}

// ---- Seconds ----

// Returns the bytes of the busiest sender, and those of the busiest receiver.
std::pair<int64_t, int64_t> busiest_ranks(const RelayoutRequest& request) {
  std::pair<int64_t, int64_t> busiest{0, 0};
  for (const RelayoutPlan& plan : plans_of_all_processes(request)) {
    int64_t sent = 0, received = 0;
    for (const RelayoutRound& round : plan.mine.rounds) {
      for (const Transfer& transfer : round.sends) sent += 4 * transfer.num_elements();
      for (const Transfer& transfer : round.receives) {
        if (transfer.sender != transfer.receiver) received += 4 * transfer.num_elements();
      }
    }
    busiest = {std::max(busiest.first, sent), std::max(busiest.second, received)};
  }
  return busiest;
}

TEST(RelayoutSeconds, AreThoseOfTheBusiestRanksLinks) {
  ModelDescription model = small_model();
  model.vocab_size = 4;
  // The first stage is the largest: it sends most if all ranks need everything, and receives most if all ranks hold the
  // same.
  const RelayoutRequest spreads = request_for(model, {.pipeline_parallel = 3}, {.data_parallel = 3});
  const RelayoutRequest gathers = request_for(model, {.data_parallel = 3, .zero_stage = 1}, {.pipeline_parallel = 3});
  const auto [most_spread, spread_to] = busiest_ranks(spreads);
  const auto [gathered_from, most_gathered] = busiest_ranks(gathers);
  ASSERT_GT(most_spread, spread_to);
  ASSERT_GT(most_gathered, gathered_from);
  for (const auto& [request, bytes] : {std::pair{spreads, most_spread}, std::pair{gathers, most_gathered}}) {
    const auto rounds = static_cast<double>(plan_relayout(request, 0).num_rounds);
    const auto busiest = static_cast<double>(bytes);
    ClusterDescription cluster{.ranks_per_node = 3,
                               .within_node = {.latency_seconds = 0.25, .bytes_per_second = 1000},
                               .between_nodes = {.latency_seconds = 0.5, .bytes_per_second = 100}};
    EXPECT_DOUBLE_EQ(relayout_seconds(request, cluster), busiest / 1000 + 0.25 * rounds);
    cluster.ranks_per_node = 1;
    EXPECT_DOUBLE_EQ(relayout_seconds(request, cluster), busiest / 100 + 0.5 * rounds);
    cluster.between_nodes.efficiency = Curve({{1, 0.5}});
    EXPECT_DOUBLE_EQ(relayout_seconds(request, cluster), busiest / 50 + 0.5 * rounds);
  }
}

TEST(RelayoutSeconds, AProcessIsOnTheNodeOfItsNumber) {
  const ClusterDescription cluster{.ranks_per_node = 3,
                                   .within_node = {.latency_seconds = 0.25, .bytes_per_second = 1000},
                                   .between_nodes = {.latency_seconds = 0.5, .bytes_per_second = 100}};
  RelayoutRequest request = request_for(small_model(), {.data_parallel = 2}, {});
  const auto seconds_on = [&](int64_t process) {
    request.to_processes = {process};
    return relayout_seconds(request, cluster);
  };
  EXPECT_EQ(seconds_on(1), 0) << "it has everything";
  request.to_processes = {2};
  const RelayoutPlan plan = plan_relayout(request, 2);
  const auto bytes = static_cast<double>(plan.bytes_received);
  // Two senders share the new process's elements, so the new process is busiest.
  EXPECT_DOUBLE_EQ(seconds_on(2), bytes / 1000 + 0.25 * static_cast<double>(plan.num_rounds));
  EXPECT_DOUBLE_EQ(seconds_on(3), bytes / 100 + 0.5 * static_cast<double>(plan.num_rounds));
}

}  // namespace
}  // namespace copus
