#include <gmock/gmock.h>

#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/orchestrator/testing/small_run.h"
#include "copus/report/files/performance_profile.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class StepTimeKnowledgeTest : public testing::Test {
 protected:
  StepTimeKnowledge known() const { return *knowledge_of_run(config_, own_); }

  // The profile of a run that begins with known() and makes `steps` steps.
  PerformanceProfile profile_after(int64_t steps, double seconds) const {
    StepTimeLearner learner(config_, configuration_of(config_), known().profile.knowledge);
    for (int64_t i = 0; i < steps; ++i) learner.add(seconds);
    return {known().profile.subject, learner.knowledge()};
  }

  TemporaryFolder folder_;
  std::filesystem::path own_ = folder_.path() / "profile.json";
  RunConfig config_ = small_run();
};

TEST_F(StepTimeKnowledgeTest, NothingIsKnownWhereNothingCanBePredicted) {
  config_.cluster = {};
  EXPECT_FALSE(knowledge_of_run(config_, own_));
  config_.cluster.profile = "earlier.json";
  EXPECT_THAT(user_error([&] { knowledge_of_run(config_, own_); }),
              AllOf(HasSubstr("cluster.profile earlier.json"), HasSubstr("matmul_teraflops")));
}

TEST_F(StepTimeKnowledgeTest, AResumedRunKnowsWhatItKnew) {
  EXPECT_EQ(known().profile.knowledge, Knowledge());
  EXPECT_THAT(known().grounds, HasSubstr("nothing was measured"));
  const PerformanceProfile profile = profile_after(17, 3);
  write_profile(own_, profile);
  EXPECT_EQ(known().profile, profile) << "with the steps that are no whole measurement yet";
  EXPECT_EQ(known().grounds, "after 15 steps in " + own_.string());
}

TEST_F(StepTimeKnowledgeTest, BeginsWithTheProfileThatTheConfigurationNames) {
  const PerformanceProfile earlier = profile_after(22, 3);
  config_.cluster.profile = folder_.path() / "earlier.json";
  write_profile(config_.cluster.profile, earlier);
  EXPECT_EQ(known().profile, earlier);
  // A profile that the run itself measured is preferred.
  const PerformanceProfile own = profile_after(200, 50);
  write_profile(own_, own);
  EXPECT_EQ(known().profile, own);
}

TEST_F(StepTimeKnowledgeTest, AProfileOfSomethingElse) {
  write_profile(own_, profile_after(22, 3));
  config_.cluster.description.flops_per_second = 2e9;
  // A run that is resumed on another cluster measures again, and says so.
  EXPECT_EQ(known().profile.knowledge, Knowledge());
  EXPECT_THAT(known().grounds, HasSubstr("does not count: the description of the cluster is another one"));
  // A profile of another cluster is a mistake if the user named it.
  config_.cluster.profile = own_;
  EXPECT_THAT(user_error([&] { known(); }), HasSubstr("measured for something else"));
  write_file_durably(own_, "{");
  EXPECT_THAT(user_error([&] { known(); }), HasSubstr("damaged"));
}

}  // namespace
}  // namespace copus
