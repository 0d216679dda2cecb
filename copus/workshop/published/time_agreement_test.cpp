#include "copus/workshop/published/time_agreement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/workshop/published/systems.h"

namespace copus {
namespace {

ClusterDescription nodes_of_eight(const std::string& /*name*/) {
  ClusterDescription cluster;
  cluster.ranks_per_node = 8;
  cluster.within_node = {.latency_seconds = 1e-6, .bytes_per_second = 1e11};
  cluster.between_nodes = {.latency_seconds = 1e-5, .bytes_per_second = 1e10};
  cluster.device.memory_bytes_per_second = 1e12;
  cluster.device.matmul_flops_per_second = 2e14;
  return cluster;
}

PublishedRun run_of(const std::string& set, int64_t tensor_parallel, int64_t micro_batch = 1) {
  PublishedRun run;
  run.rank_set = set;
  run.framework = "Megatron-LM";
  run.hardware = "A100-80GB";
  run.precision = "bf16";
  run.num_gpus = 8;
  run.model.vocab_size = 32000;
  run.model.hidden_size = 2048;
  run.model.intermediate_size = 8192;
  run.model.num_layers = 16;
  run.model.num_heads = run.model.num_kv_heads = 16;
  run.model.head_dim = 128;
  run.sequence_length = 2048;
  run.configuration.strategy = {.data_parallel = 8 / tensor_parallel, .tensor_parallel = tensor_parallel};
  run.configuration.global_batch = 64;
  run.configuration.micro_batch = micro_batch;
  run.tokens_per_second_per_gpu = 1;
  return run;
}

// Sets the measured time to the predicted one, multiplied by these factors.
void measure(PublishedRun& run, double compute, double communication) {
  const PublishedCase described = describe_published(run);
  StepTimeModel model(described.model, run.sequence_length, nodes_of_eight(""), described.system);
  const double seconds = corrected_seconds({compute, communication}, model.predict(described.configuration));
  run.tokens_per_second_per_gpu = 64.0 * 2048 / 8 / seconds;
}

TEST(PublishedAgreement, NodesAreAsLargeAsTheRunSays) {
  const auto communication = [](int64_t gpus_per_node) {
    PublishedRun run = run_of("A", 1);
    run.gpus_per_node = gpus_per_node;
    return judge_step_times({run}, nodes_of_eight).sets.at(0).runs.at(0).parts.data_communication;
  };
  EXPECT_EQ(communication(0), communication(8));
  EXPECT_GT(communication(4), communication(8));
}

TEST(PublishedAgreement, ConstantsOfOneHalfExplainTheOther) {
  std::vector<PublishedRun> runs;
  for (const char* set : {"A", "B", "C"}) {
    for (const int64_t t : {1, 2, 4, 8}) {
      runs.push_back(run_of(set, t));
      measure(runs.back(), 1.25, 2);
    }
  }
  const PublishedAgreement agreement = judge_step_times(runs, nodes_of_eight);
  ASSERT_EQ(agreement.sets.size(), 3U);
  EXPECT_TRUE(agreement.sets[0].is_fitted);
  EXPECT_FALSE(agreement.sets[1].is_fitted);
  EXPECT_TRUE(agreement.sets[2].is_fitted);
  ASSERT_EQ(agreement.constants.size(), 1U);
  EXPECT_NEAR(agreement.constants.begin()->second.compute, 1.25, 0.01);
  EXPECT_NEAR(agreement.constants.begin()->second.communication, 2, 0.02);
  EXPECT_EQ(agreement.held_out.sets, 1);
  EXPECT_DOUBLE_EQ(agreement.held_out.mean_kendall_tau, 1);
  EXPECT_DOUBLE_EQ(agreement.held_out.mean_top1_regret, 0);
  EXPECT_LT(agreement.held_out.median_absolute_error, 0.01);
  EXPECT_EQ(agreement.fitted.sets, 2);
}

TEST(PublishedAgreement, SaysHowMuchLongerTheChosenLayoutTookWithoutConstants) {
  std::vector<PublishedRun> runs;
  for (const double slowdown : {1.1, 1.2, 1.6}) {
    for (const int64_t t : {1, 2, 4}) {
      runs.push_back(run_of(concat(slowdown), t));
      // Only the layout without tensor parallelism matters, because its prediction is the fastest.
      measure(runs.back(), t == 1 ? slowdown : 5, t == 1 ? slowdown : 5);
    }
  }
  const PublishedAgreement agreement = judge_step_times(runs, nodes_of_eight);
  EXPECT_NEAR(agreement.sets[2].uncorrected_slowdown, 1.6, 1e-9);
  EXPECT_NEAR(agreement.uncorrected_slowdown.lower, 1.15, 1e-9);
  EXPECT_NEAR(agreement.uncorrected_slowdown.median, 1.2, 1e-9);
  EXPECT_NEAR(agreement.uncorrected_slowdown.upper, 1.4, 1e-9);
}

TEST(PublishedAgreement, ALayoutCountsWithItsFastestRun) {
  std::vector<PublishedRun> runs = {run_of("A", 1, 1), run_of("A", 1, 2), run_of("A", 2)};
  runs[0].tokens_per_second_per_gpu = 50;
  runs[1].tokens_per_second_per_gpu = 70;
  runs[2].tokens_per_second_per_gpu = 100;
  const JudgedSet set = judge_step_times(runs, nodes_of_eight).sets.front();
  EXPECT_EQ(set.layouts, (std::vector<size_t>{2, 1}));
  EXPECT_EQ(set.runs.size(), 3U);
  // The model predicts that the layout without tensor parallelism is faster. Choosing that layout would lose 30 %.
  EXPECT_DOUBLE_EQ(set.kendall_tau, -1);
  EXPECT_NEAR(set.top1_regret, 0.3, 1e-12);
}

TEST(PublishedAgreement, RunsAreCountedThatLieInTheRangeOfTheirPrediction) {
  std::vector<PublishedRun> runs;
  for (const char* set : {"A", "B", "C"}) {
    for (const int64_t t : {1, 2, 4, 8}) {
      runs.push_back(run_of(set, t));
      measure(runs.back(), 1, 1);
    }
  }
  *runs[4].tokens_per_second_per_gpu *= 1.15;  // within two standard deviations of 0.1
  *runs[5].tokens_per_second_per_gpu *= 1.3;
  const PublishedAgreement agreement = judge_step_times(runs, nodes_of_eight);
  EXPECT_EQ(agreement.sets[1].share_in_range, 0.75);
  EXPECT_EQ(agreement.held_out.share_in_range, 0.75);
  EXPECT_EQ(agreement.fitted.share_in_range, 1);
  EXPECT_NEAR(agreement.held_out.mean_absolute_error, (0.15 / 1.15 + 0.3 / 1.3) / 4, 0.002);
}

TEST(PublishedAgreement, MoreNodesThanWereFittedAreLessSure) {
  std::vector<PublishedRun> runs = {run_of("A", 1), run_of("B", 1)};
  for (PublishedRun& run : runs) measure(run, 1, 1);
  runs[1].num_gpus = 32;
  const PublishedAgreement agreement = judge_step_times(runs, nodes_of_eight);
  const JudgedRun& fitted = agreement.sets[0].runs[0];
  const JudgedRun& beyond = agreement.sets[1].runs[0];
  EXPECT_FALSE(fitted.doubt.beyond_measured);
  EXPECT_DOUBLE_EQ(fitted.doubt.relative_deviation, 0.1);
  EXPECT_TRUE(beyond.doubt.beyond_measured);
  EXPECT_DOUBLE_EQ(beyond.doubt.relative_deviation, std::hypot(0.1, 0.1));  // two doublings with 0.05 each
}

TEST(PublishedAgreement, OneLayoutHasNoOrder) {
  const PublishedAgreement agreement = judge_step_times({run_of("A", 1)}, nodes_of_eight);
  EXPECT_TRUE(std::isnan(agreement.sets.front().kendall_tau));
  EXPECT_TRUE(std::isnan(agreement.fitted.mean_top1_regret));
  EXPECT_TRUE(std::isnan(agreement.held_out.median_absolute_error));
}

TEST(PublishedAgreement, WhatIsNotInOurTermsIsLeftOutWithItsReason) {
  std::vector<PublishedRun> runs(5, run_of("A", 1));
  runs[0].rank_set.clear();
  runs[1].precision = "fp8";
  runs[2].context_parallel = 2;
  runs[3].hardware = "V100-32GB";
  runs[4].framework = "nobody's";
  const PublishedAgreement agreement = judge_step_times(runs, nodes_of_eight);
  EXPECT_TRUE(agreement.sets.empty());
  EXPECT_EQ(agreement.left_out, (std::map<std::string, int64_t>{{"context parallel", 1},
                                                                {"framework not described: nobody's", 1},
                                                                {"hardware not described: V100-32GB", 1},
                                                                {"in no rank set", 1},
                                                                {"precision below 16 bits", 1}}));
}

TEST(PublishedSystems, ProgramsAreToldApart) {
  PublishedRun run = run_of("A", 1);
  run.hardware = "H100-80GB SXM";
  run.framework = "nanotron v0.5";
  EXPECT_EQ(describe_published(run).cluster, "h100-playbook");
  EXPECT_EQ(describe_published(run).system.stage_cut, StageCut::thresholds);
  const auto reduction = [&] { return describe_published(run).system.reduction_of(run.configuration.strategy); };
  EXPECT_TRUE(reduction().overlaps);
  EXPECT_EQ(reduction().bucket_parameters, 25 << 19);
  run.configuration.strategy.zero_stage = 1;
  EXPECT_FALSE(reduction().overlaps);
  EXPECT_FALSE(describe_published(run).system.scatters_gradients);
  // Published times of Megatron-LM are judged independently of what a plan for Megatron-LM assumes.
  run.framework = "Megatron-LM";
  EXPECT_EQ(describe_published(run).system.memory, copus_memory_use());
  run.framework = "InternEvo";
  run.zero_group = 8;
  EXPECT_EQ(describe_published(run).system.optimizer_group, 8);
  // Two feed-forward matrices count as three matrices with two thirds of the width.
  run.gated = false;
  EXPECT_EQ(describe_published(run).model.intermediate_size, 8192 * 2 / 3);
}

}  // namespace
}  // namespace copus
