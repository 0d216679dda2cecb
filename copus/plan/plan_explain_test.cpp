// What --explain understands and says.
#include "copus/plan/plan_explain.h"

#include <gmock/gmock.h>

#include "copus/base/testing/test_support.h"
#include "copus/plan/testing/plan_test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Verdict = Explanation::Verdict;

TEST(PlanExplain, ReadsPartsOfAConfiguration) {
  const PartialConfiguration all =
      parse_partial_configuration("d=4,t=2,p=3,v=2,mb=8,zero=1,sp=1,schedule=interleaved,recompute=full");
  EXPECT_EQ(all.data_parallel, 4);
  EXPECT_EQ(all.tensor_parallel, 2);
  EXPECT_EQ(all.pipeline_parallel, 3);
  EXPECT_EQ(all.virtual_stages, 2);
  EXPECT_EQ(all.micro_batch, 8);
  EXPECT_EQ(all.zero_stage, 1);
  EXPECT_EQ(all.sequence_parallel, true);
  EXPECT_EQ(all.schedule, PipelineSchedule::interleaved_1f1b);
  EXPECT_EQ(all.recompute, Recompute::full);
  const PartialConfiguration some = parse_partial_configuration("t=8");
  EXPECT_EQ(some.data_parallel, 1);
  EXPECT_EQ(some.tensor_parallel, 8);
  EXPECT_FALSE(some.micro_batch || some.zero_stage || some.schedule || some.sequence_parallel);
}

TEST(PlanExplain, RefusesWhatItCannotRead) {
  const auto complaint = [](const char* text) { return user_error([&] { parse_partial_configuration(text); }); };
  EXPECT_THAT(complaint("d=8,x=1"),
              AllOf(HasSubstr("--explain d=8,x=1: \"x\" is no key"), HasSubstr("recompute=none")));
  EXPECT_THAT(complaint("shedule=1f1b"), HasSubstr("did you mean \"schedule\"?"));
  EXPECT_THAT(complaint("schedule=2f2b"), HasSubstr("schedule must be one of gpipe, 1f1b, interleaved, zb-h1"));
  EXPECT_THAT(complaint("d"), HasSubstr("\"d\" is no KEY=VALUE"));
  EXPECT_THAT(complaint("d=0"), HasSubstr("d must be a whole number from 1 to"));
  EXPECT_THAT(complaint("d=8x"), HasSubstr("got \"8x\""));
  EXPECT_THAT(complaint("d=99999999999999999999"), HasSubstr("d must be a whole number"));
  EXPECT_THAT(complaint("zero=3"), HasSubstr("zero must be a whole number from 0 to 1"));
  EXPECT_THAT(complaint("d=2,d=4"), HasSubstr("\"d\" is there twice"));
}

class PlanExplainSmall : public testing::Test {
 protected:
  Explanation explain(const char* text) {
    return copus::explain(question_, plan_.batches.front(), parse_partial_configuration(text));
  }

  const PlanQuestion question_ = small_question({64});
  const Plan plan_ = make_plan(question_);
};

TEST_F(PlanExplainSmall, TheFastestIsCalledThat) {
  const Layout best = layout_of(plan_.batches.front().layouts.front().configuration);
  const std::string asked =
      concat("d=", best.data_parallel, ",t=", best.tensor_parallel, ",p=", best.pipeline_parallel);
  const Explanation explanation = explain(asked.c_str());
  EXPECT_EQ(explanation.verdict, Verdict::fits);
  EXPECT_THAT(explanation.text, HasSubstr("It is the fastest of the plan."));
  EXPECT_EQ(explanation.configuration->configuration, plan_.batches.front().layouts.front().configuration);
}

TEST_F(PlanExplainSmall, AnotherIsComparedPartByPart) {
  const auto& layouts = plan_.batches.front().layouts;
  const Layout last = layout_of(layouts.back().configuration);
  const std::string asked =
      concat("d=", last.data_parallel, ",t=", last.tensor_parallel, ",p=", last.pipeline_parallel);
  const Explanation explanation = explain(asked.c_str());
  EXPECT_EQ(explanation.verdict, Verdict::fits);
  EXPECT_EQ(explanation.configuration->seconds, layouts.back().seconds);
  EXPECT_THAT(explanation.text, AllOf(HasSubstr(concat("rank ", layouts.size(), " of ", layouts.size(), " layouts")),
                                      HasSubstr("% slower ("), HasSubstr(" +"),
                                      HasSubstr(to_string(layout_of(layouts.front().configuration)))));
}

TEST_F(PlanExplainSmall, WhatIsNamedIsKeptAndTheLayoutAtItsFastestTold) {
  const Explanation explanation = explain("t=4,d=2,recompute=full,mb=1");
  EXPECT_EQ(explanation.verdict, Verdict::fits);
  EXPECT_EQ(explanation.configuration->configuration.strategy.recompute, Recompute::full);
  EXPECT_EQ(explanation.configuration->configuration.micro_batch, 1);
  EXPECT_THAT(explanation.text, HasSubstr("where the layout at its fastest (rank "));
}

TEST_F(PlanExplainSmall, TooLargeSaysHowMuchIsNeeded) {
  const Explanation explanation = explain("d=8,zero=0,recompute=none,mb=8");
  EXPECT_EQ(explanation.verdict, Verdict::too_large);
  EXPECT_THAT(explanation.text, AllOf(HasSubstr("DP8"), HasSubstr("needs "), HasSubstr("GiB"), HasSubstr("has 14.9")));
  EXPECT_GT(explanation.configuration->memory.parts.total(), 16e9);
}

TEST_F(PlanExplainSmall, ImpossibleSaysWhy) {
  EXPECT_EQ(explain("d=16").verdict, Verdict::impossible);
  EXPECT_THAT(explain("d=16").text, HasSubstr("DP16 needs 16 GPUs (d x t x p), and the plan is for 8"));
  EXPECT_THAT(explain("d=8,mb=3").text, HasSubstr("DP8 is impossible: train.global_batch 64 is no multiple of"));
  EXPECT_THAT(explain("t=8,schedule=interleaved").text, HasSubstr("virtual_stages"));
}

TEST_F(PlanExplainSmall, WhatMakesNoDifferenceIsNoContradiction) {
  EXPECT_EQ(explain("t=4,p=2,zero=1").verdict, Verdict::fits) << "ZeRO with d = 1";
}

// A plan looks within nodes for tensor parallelism; who asks for more is told about it.
TEST_F(PlanExplainSmall, LooksBeyondThePlan) {
  const Explanation explanation = explain("t=8");
  EXPECT_EQ(explanation.verdict, Verdict::fits);
  EXPECT_THAT(explanation.text, HasSubstr("which the plan leaves out: tensor parallelism stays within a node of 4."));
  EXPECT_THAT(explain("d=8,mb=4").text, testing::Not(HasSubstr("leaves out")));
}

// What an option leaves out is compared only if it is asked for by name, and then it may be faster than the plan.
TEST_F(PlanExplainSmall, KeepsToTheOptionsOfThePlan) {
  PlanQuestion restricted = question_;
  restricted.space.recomputes = {Recompute::full};
  const Plan plan = make_plan(restricted);
  const BatchPlan& batch = plan.batches.front();
  const Layout best = layout_of(batch.layouts.front().configuration);
  const std::string layout =
      concat("d=", best.data_parallel, ",t=", best.tensor_parallel, ",p=", best.pipeline_parallel);
  const Explanation within = copus::explain(restricted, batch, parse_partial_configuration(layout));
  EXPECT_EQ(within.configuration->configuration, batch.layouts.front().configuration);
  EXPECT_THAT(within.text, HasSubstr("It is the fastest of the plan."));
  const Explanation beyond = copus::explain(restricted, batch, parse_partial_configuration(layout + ",recompute=none"));
  EXPECT_LT(beyond.configuration->seconds, within.configuration->seconds);
  EXPECT_THAT(beyond.text, AllOf(HasSubstr("which the plan leaves out: its options"), HasSubstr("% faster."),
                                 testing::Not(HasSubstr("slower"))));
}

}  // namespace
}  // namespace copus
