// The output of --explain.
#include "copus/plan/plan_explain.h"

#include <gmock/gmock.h>

#include "copus/base/testing/test_support.h"
#include "copus/plan/testing/plan_test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Verdict = Explanation::Verdict;

class PlanExplainSmall : public testing::Test {
 protected:
  Explanation explain(const std::string& text) {
    return copus::explain(question_, plan_.batches.front(), parse_configuration_change(text));
  }

  const PlanQuestion question_ = small_question({64});
  const Plan plan_ = make_plan(question_);
};

TEST_F(PlanExplainSmall, TheFastestIsCalledThat) {
  const Explanation explanation = explain(to_string(plan_.batches.front().layouts.front().layout()));
  EXPECT_EQ(explanation.verdict, Verdict::fits);
  EXPECT_THAT(explanation.text, HasSubstr("It is the fastest of the plan."));
  EXPECT_EQ(explanation.configuration->configuration, plan_.batches.front().layouts.front().configuration);
}

TEST_F(PlanExplainSmall, AnotherIsComparedPartByPart) {
  const auto& layouts = plan_.batches.front().layouts;
  const Explanation explanation = explain(to_string(layouts.back().layout()));
  EXPECT_EQ(explanation.verdict, Verdict::fits);
  EXPECT_EQ(explanation.configuration->seconds, layouts.back().seconds);
  EXPECT_THAT(explanation.text,
              AllOf(HasSubstr(concat("rank ", layouts.size(), " of ", layouts.size(), " layouts")),
                    HasSubstr("% slower ("), HasSubstr(" +"), HasSubstr(to_string(layouts.front().configuration))));
}

TEST_F(PlanExplainSmall, WhatIsNamedIsKeptAndTheLayoutAtItsFastestTold) {
  const Explanation explanation = explain("t=4,d=2,recompute=full,b=1");
  EXPECT_EQ(explanation.verdict, Verdict::fits);
  EXPECT_EQ(explanation.configuration->configuration.strategy.recompute, Recompute::full);
  EXPECT_EQ(explanation.configuration->configuration.micro_batch, 1);
  EXPECT_THAT(explanation.text, HasSubstr("where the layout at its fastest (rank "));
}

TEST_F(PlanExplainSmall, TooLargeSaysHowMuchIsNeeded) {
  const Explanation explanation = explain("d=8,zero=0,recompute=none,b=8");
  EXPECT_EQ(explanation.verdict, Verdict::too_large);
  EXPECT_THAT(explanation.text,
              AllOf(HasSubstr("d=8,t=1,p=1"), HasSubstr("needs "), HasSubstr("GiB"), HasSubstr("has 14.9")));
  EXPECT_GT(explanation.configuration->memory.parts.total(), 16e9);
}

TEST_F(PlanExplainSmall, ImpossibleSaysWhy) {
  EXPECT_EQ(explain("d=16").verdict, Verdict::impossible);
  EXPECT_THAT(explain("d=16").text, HasSubstr("d=16,t=1,p=1 needs 16 GPUs (d x t x p), and the plan is for 8"));
  EXPECT_THAT(explain("d=8,b=3").text, HasSubstr("d=8,t=1,p=1 is impossible: train.global_batch 64 is no multiple of"));
  EXPECT_THAT(explain("t=8,schedule=interleaved").text, HasSubstr("virtual_stages"));
}

// Every configuration that a plan prints can be explained.
TEST_F(PlanExplainSmall, EveryRowIsUnderstood) {
  for (const PlannedConfiguration& row : plan_.batches.front().layouts) {
    const Explanation explanation = explain(to_string(row.configuration));
    EXPECT_EQ(explanation.verdict, Verdict::fits);
    EXPECT_EQ(explanation.configuration->configuration, row.configuration);
    EXPECT_THAT(explanation.text, HasSubstr(to_string(row.configuration)));
  }
}

TEST_F(PlanExplainSmall, CopiesAreLookedAtWhereTheyAreNamed) {
  const Explanation explanation = explain("d=8,replicas=2");
  EXPECT_EQ(explanation.verdict, Verdict::fits);
  EXPECT_EQ(explanation.configuration->configuration.strategy.zero_replicas, 2);
  EXPECT_THAT(explanation.text, HasSubstr("which the plan leaves out"));
}

TEST_F(PlanExplainSmall, WhatMakesNoDifferenceIsNoContradiction) {
  EXPECT_EQ(explain("t=4,p=2,zero=1").verdict, Verdict::fits) << "ZeRO with d = 1";
}

// A plan considers tensor parallelism only within nodes. A request for more is explained nevertheless.
TEST_F(PlanExplainSmall, LooksBeyondThePlan) {
  const Explanation explanation = explain("t=8");
  EXPECT_EQ(explanation.verdict, Verdict::fits);
  EXPECT_THAT(explanation.text, HasSubstr("which the plan leaves out: tensor parallelism stays within a node of 4."));
  EXPECT_THAT(explain("d=8,b=4").text, testing::Not(HasSubstr("leaves out")));
}

// Values that an option excludes are compared only if they are requested by name, and may then be faster than the plan.
TEST_F(PlanExplainSmall, KeepsToTheOptionsOfThePlan) {
  PlanQuestion restricted = question_;
  restricted.space.recomputes = {Recompute::full};
  const Plan plan = make_plan(restricted);
  const BatchPlan& batch = plan.batches.front();
  const std::string layout = to_string(batch.layouts.front().layout());
  const Explanation within = copus::explain(restricted, batch, parse_configuration_change(layout));
  EXPECT_EQ(within.configuration->configuration, batch.layouts.front().configuration);
  EXPECT_THAT(within.text, HasSubstr("It is the fastest of the plan."));
  const Explanation beyond = copus::explain(restricted, batch, parse_configuration_change(layout + ",recompute=none"));
  EXPECT_LT(beyond.configuration->seconds, within.configuration->seconds);
  EXPECT_THAT(beyond.text, AllOf(HasSubstr("which the plan leaves out: its options"), HasSubstr("% faster."),
                                 testing::Not(HasSubstr("slower"))));
}

}  // namespace
}  // namespace copus
