// The tables and the JSON object of a plan.
#include "copus/plan/plan_report.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "copus/plan/testing/plan_test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Plan one_batch() {
  Plan plan = written_down_plan();
  plan.batches.resize(1);
  return plan;
}

TEST(PlanReport, OneBatchIsRanked) {
  const std::string text = to_text(small_question({16}), one_batch(), 10);
  EXPECT_THAT(text, HasSubstr("small on 8 x GPU, sequences of 1024, bf16\n1,234 configurations fit, 5 need too much "
                              "memory.\nAll times are predictions"));
  EXPECT_THAT(text, HasSubstr("Global batch 16: 2 of 2 layouts"));
  EXPECT_THAT(text, HasSubstr("B  b  d  t  p    step"));
  EXPECT_THAT(text, HasSubstr("1.00 s  0 %         2,048  40.0 %     60 %    30 %    10 %   0 %        0 %\n"));
  EXPECT_THAT(text, HasSubstr("GiB, of 14.9\n"));
  EXPECT_THAT(text,
              HasSubstr("1      0.9        1.9        2.8          3.7     0.5        0.0    9.8              1\n"));
  EXPECT_THAT(to_text(small_question({16}), one_batch(), 1),
              AllOf(HasSubstr("1 of 2 layouts"), Not(HasSubstr("1.25 s"))));
}

// A layout of 10.5 GB is marked, because with the median error of published runs it would need 11.3 GB.
TEST(PlanReport, WarnsOfLayoutsThatNearlyFillTheMemory) {
  PlanQuestion question = small_question({16});
  EXPECT_THAT(to_text(question, one_batch(), 10), Not(HasSubstr("would not fit")));
  question.cluster.device.memory_bytes = 11e9;
  EXPECT_THAT(to_text(question, one_batch(), 10),
              AllOf(HasSubstr("; with such an error 2 of these layouts would not fit\n"),
                    HasSubstr("The first layout fills 95 % of the memory and may run out of it")));
  question.cluster.device.memory_bytes = 0;
  EXPECT_THAT(to_text(question, one_batch(), 10), Not(HasSubstr("would not fit")));
}

TEST(PlanReport, SeveralBatchesShowTheFastestOfEachAndItsChanges) {
  const std::string text = to_text(small_question({16, 32, 64, 128}), written_down_plan(), 10);
  EXPECT_THAT(text, HasSubstr("d=2,t=4,p=1"));
  EXPECT_THAT(text, HasSubstr("25.0 %")) << "behind by";
  EXPECT_THAT(text, HasSubstr("No configuration fits at a global batch of 32."));
  EXPECT_THAT(text, HasSubstr("Between 16 and 64 the fastest layout changes from d=2,t=4,p=1 to d=8,t=1,p=1."));
}

// 10^9 tokens in batches of 16 sequences of 1024 are 61,036 steps of a second on 8 GPUs.
TEST(PlanReport, SaysHowLongTrainingTakes) {
  PlanQuestion question = small_question({16});
  EXPECT_THAT(to_text(question, one_batch(), 10), Not(HasSubstr("GPU-hours")));
  question.tokens = 1'000'000'000;
  const std::string text = to_text(question, one_batch(), 10);
  EXPECT_THAT(text, HasSubstr("Training on 1.0 B tokens"));
  EXPECT_THAT(text, HasSubstr("16  d=2,t=4,p=1  61,036  0.706  0 %        136\n"));
  EXPECT_THAT(text, HasSubstr("16  d=8,t=1,p=1  61,036  0.883  0 %        170\n"));
  const auto json = nlohmann::json::parse(to_json(question, one_batch(), 1, {}));
  EXPECT_EQ(json["tokens"], 1'000'000'000);
  EXPECT_EQ(json["batches"][0]["layouts"][0]["steps"], 61036);
  EXPECT_DOUBLE_EQ(json["batches"][0]["layouts"][0]["days"], 61036 / 86400.0);
  EXPECT_DOUBLE_EQ(json["batches"][0]["layouts"][0]["gpu_hours"], 8 * 61036 / 3600.0);
}

TEST(PlanReport, WithoutAPeakUtilizationIsNotAvailable) {
  EXPECT_EQ(utilization_text(0.4123), "41.2 %");
  EXPECT_EQ(utilization_text(std::nan("")), "n/a");
  Plan plan = one_batch();
  for (PlannedConfiguration& row : plan.batches[0].layouts) row.model_flops_utilization = std::nan("");
  EXPECT_THAT(to_text(small_question({16}), plan, 10), HasSubstr("n/a"));
  const auto json = nlohmann::json::parse(to_json(small_question({16}), plan, 10, {}));
  EXPECT_TRUE(json["batches"][0]["layouts"][0]["mfu"].is_null());
}

TEST(PlanReport, JsonHoldsAll) {
  const std::vector<Explanation> explanations = {
      {16, Explanation::Verdict::fits, "why", written_down(8, 1, 1, 16, 1.25)},
      {32, Explanation::Verdict::impossible, "why not", std::nullopt}};
  const auto json =
      nlohmann::json::parse(to_json(small_question({16, 32, 64, 128}), written_down_plan(), 1, explanations));
  EXPECT_EQ(json["model"], "small");
  EXPECT_EQ(json["gpus"], 8);
  EXPECT_EQ(json["configurations"], 1234);
  EXPECT_EQ(json["too_large"], 5);
  EXPECT_EQ(json["peak_flops_per_second"], 200e12);
  ASSERT_EQ(json["batches"].size(), 4);
  EXPECT_EQ(json["batches"][0]["num_layouts"], 2);
  ASSERT_EQ(json["batches"][0]["layouts"].size(), 1) << "the top one";
  const auto& best = json["batches"][0]["layouts"][0];
  EXPECT_EQ(best["tensor_parallel"], 4);
  EXPECT_EQ(best["step_seconds"], 1.0);
  EXPECT_EQ(best["num_microbatches"], 8);
  EXPECT_EQ(best["mfu"], 0.4);
  EXPECT_EQ(best["seconds"]["tensor_communication"], 0.3);
  EXPECT_EQ(best["memory_bytes"]["total"], 10.5e9);
  EXPECT_EQ(json["batches"][1]["layouts"].size(), 0);
  ASSERT_EQ(json["crossovers"].size(), 1);
  EXPECT_EQ(json["crossovers"][0]["first_batch"], 64);
  EXPECT_EQ(json["crossovers"][0]["to"]["data_parallel"], 8);
  EXPECT_EQ(json["explanations"][0]["verdict"], "fits");
  EXPECT_EQ(json["explanations"][0]["configuration"]["step_seconds"], 1.25);
  EXPECT_TRUE(json["explanations"][1]["configuration"].is_null());
}

// Before anything has been measured, the standard deviation is an assumption, and the text says so.
TEST(PlanReport, SaysWhatPlusMinusStandsOn) {
  PlanQuestion question = small_question({16});
  EXPECT_THAT(to_text(question, one_batch(), 10), HasSubstr("+-: one standard deviation, assumed"));
  question.tokens = 1'000'000'000;
  // The text about times appears below each kind of table: layouts, training times and batches. Memory has its own
  // text.
  const auto count = [](const std::string& text, const std::string& words) {
    size_t found = 0;
    for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++found;
    return found;
  };
  const std::string slowdown = "steps of nanotron on H100 took 1.22 times as long as predicted so in the median of 14";
  EXPECT_THAT(to_text(question, one_batch(), 10), HasSubstr("No run of Copus on GPU was compared"));
  question.program = PlannedSystem::nanotron;
  question.cluster.device.name = "H100 SXM 80GB";
  EXPECT_EQ(count(to_text(question, one_batch(), 10), slowdown), 2U);
  EXPECT_EQ(count(to_text(question, written_down_plan(), 10), slowdown), 2U);
  EXPECT_THAT(to_text(question, one_batch(), 10), HasSubstr("7.6 % off in the median of 1,516 runs"));
  const std::vector<Explanation> fits = {{16, Explanation::Verdict::fits, "why", written_down(8, 1, 1, 16, 1.25)}};
  EXPECT_EQ(count(to_text(question, fits), slowdown), 1U);
  const auto json = nlohmann::json::parse(to_json(question, one_batch(), 1, {}));
  EXPECT_EQ(json["uncertainty"]["published_slowdown"]["median"], 1.22);
  EXPECT_THAT(json["uncertainty"]["times"].get<std::string>(), HasSubstr(slowdown));
  const PlannedConfiguration row = one_batch().batches[0].layouts[0];
  question.knowledge = observe(question.knowledge, row.configuration, row.parts, {10, 1.0, 0.01});
  EXPECT_THAT(to_text(question, one_batch(), 10),
              AllOf(HasSubstr("corrected by 10 measured steps of 1 configuration."), Not(HasSubstr("assumed")),
                    HasSubstr("+-: one standard deviation, after 10 measured steps of 1 configuration")));
}

TEST(PlanReport, SaysWhereNothingWasMeasured) {
  PlanQuestion question = small_question({16});
  question.space.world_size = 4 * question.cluster.ranks_per_node;
  EXPECT_THAT(to_text(question, one_batch(), 10), Not(HasSubstr("less sure")));
  question.cluster.measured_nodes = 4;
  EXPECT_THAT(to_text(question, one_batch(), 10), Not(HasSubstr("less sure")));
  question.cluster.measured_nodes = 2;
  EXPECT_THAT(to_text(question, one_batch(), 10), HasSubstr("These are 4 nodes"));
  EXPECT_THAT(to_text(question, one_batch(), 10), HasSubstr("on up to 2: beyond, predictions are less sure"));
}

TEST(PlanReport, SaysThatNodesAreNotFull) {
  PlanQuestion question = small_question({16});
  EXPECT_THAT(to_text(question, one_batch(), 10), Not(HasSubstr("not all full")));
  question.space.world_size = 2 * question.cluster.ranks_per_node + 1;
  EXPECT_THAT(to_text(question, one_batch(), 10), HasSubstr("Nodes of 4 are not all full: the last one has 1 "));
}

TEST(PlanReport, OfAnotherPrecisionItNamesWhatItTakesForGranted) {
  PlanQuestion question = small_question({16});
  EXPECT_THAT(to_text(question, one_batch(), 10), Not(HasSubstr("fp32")));
  question.precision = "fp32";
  EXPECT_THAT(to_text(question, one_batch(), 10), HasSubstr("see that it describes fp32"));
  question.cluster.device.name = "EPYC, one core, fp32";
  EXPECT_THAT(to_text(question, one_batch(), 10), Not(HasSubstr("see that it describes fp32")));
  question.cluster.device.name = "EPYC, one core, bf16";
  EXPECT_THAT(to_text(question, one_batch(), 10), HasSubstr("Warning: the cluster's description was measured in bf16"));
}

TEST(PlanReport, SlowStepsKeepTheirDigits) {
  Plan plan = one_batch();
  for (PlannedConfiguration& row : plan.batches[0].layouts) {
    row.seconds = 3509.98;
    row.tokens_per_second_per_gpu = 4.667;
  }
  EXPECT_THAT(to_text(small_question({16}), plan, 10), AllOf(HasSubstr("3510 s"), HasSubstr(" 4.67 ")));
}

TEST(PlanReport, NamesThatAreNoTextLeaveTheJsonWhole) {
  PlanQuestion question = small_question({16});
  question.model_name =
      "b\xff"
      "d";
  EXPECT_EQ(nlohmann::json::parse(to_json(question, one_batch(), 1, {}))["model"],
            "b\xEF\xBF\xBD"
            "d");
}

TEST(PlanReport, NumbersHaveCommas) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(1234567.4), "1,234,567");
}

}  // namespace
}  // namespace copus
