#include "copus/train/step_time_learner.h"

#include <gmock/gmock.h>

#include "copus/base/durable_file.h"
#include "copus/base/test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A run of two ranks on the virtual clock, with nothing of it on the disk.
RunConfig small_run() {
  RunConfig config;
  config.model.vocab_size = 256;
  config.model.hidden_size = 64;
  config.model.intermediate_size = 128;
  config.model.num_layers = 2;
  config.model.num_heads = config.model.num_kv_heads = 4;
  config.model.head_dim = 16;
  config.train.sequence_length = 64;
  config.train.global_batch = 8;
  config.train.micro_batch = 2;
  config.train.precision = Precision::fp32;
  config.parallel.data_parallel = 2;
  config.cluster.clock = ClockKind::virtual_time;
  config.cluster.description.ranks_per_node = 1;
  config.cluster.description.within_node = {1e-6, 1e9};
  config.cluster.description.between_nodes = {1e-6, 1e9};
  config.cluster.description.flops_per_second = 1e9;
  return config;
}

class StepTimeLearnerTest : public testing::Test {
 protected:
  StepTimeLearner learner() { return *StepTimeLearner::of_run(config_, own_); }

  static void add(StepTimeLearner& learner, double seconds, int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) learner.add(seconds);
  }

  TemporaryFolder folder_;
  std::filesystem::path own_ = folder_.path() / "profile.json";
  RunConfig config_ = small_run();
};

TEST_F(StepTimeLearnerTest, LearnsNothingWhereNothingCanBePredicted) {
  config_.cluster.description.flops_per_second = 0;
  EXPECT_FALSE(StepTimeLearner::of_run(config_, own_));
  config_.cluster.description.device.matmul_flops_per_second = 1e9;
  EXPECT_TRUE(StepTimeLearner::of_run(config_, own_));
  // teraflops_per_rank is no rate of the devices of a real clock.
  config_ = small_run();
  config_.cluster.clock = ClockKind::wall;
  EXPECT_FALSE(StepTimeLearner::of_run(config_, own_));
  config_.cluster = {};
  EXPECT_FALSE(StepTimeLearner::of_run(config_, own_));
  config_.cluster.profile = "earlier.json";
  EXPECT_THAT(user_error([&] { StepTimeLearner::of_run(config_, own_); }),
              AllOf(HasSubstr("cluster.profile earlier.json"), HasSubstr("matmul_teraflops")));
}

TEST_F(StepTimeLearnerTest, ApproachesWhatStepsTake) {
  StepTimeLearner run = learner();
  const double truth = 2 * run.expected().seconds;
  const double doubt = run.expected().relative_deviation;
  EXPECT_EQ(run.conclusion(), std::nullopt);
  add(run, truth, StepTimeLearner::warm_up_steps + 1);
  EXPECT_NEAR(run.expected().seconds / truth, 1, 0.1);  // each step counts at once
  add(run, truth, 40);
  EXPECT_NEAR(run.expected().seconds / truth, 1, 0.01);
  EXPECT_LT(run.expected().relative_deviation, 0.1 * doubt);
  EXPECT_THAT(*run.conclusion(), HasSubstr("median of 41"));
}

TEST_F(StepTimeLearnerTest, TheFirstStepsOfAProcessAndSlowOnesDoNotCount) {
  StepTimeLearner run = learner();
  const double usual = run.expected().seconds;
  add(run, 50 * usual, StepTimeLearner::warm_up_steps);
  EXPECT_EQ(run.profile().knowledge, Knowledge());
  EXPECT_EQ(run.expected().seconds, usual);
  for (int64_t i = 0; i < 50; ++i) run.add(i % 7 == 3 ? 9 * usual : usual);
  EXPECT_NEAR(run.expected().seconds / usual, 1, 0.01);
}

TEST_F(StepTimeLearnerTest, ManyStepsBecomeAMeasurement) {
  StepTimeLearner run = learner();
  add(run, 1, StepTimeLearner::warm_up_steps + 2 * StepTimeLearner::steps_per_measurement + 3);
  const Knowledge knowledge = run.profile().knowledge;
  const auto& cells = knowledge.cells();
  ASSERT_EQ(cells.size(), 1);
  EXPECT_EQ(cells.begin()->first, configuration_of(config_));
  const auto& measurements = cells.begin()->second.measurements;
  ASSERT_EQ(measurements.size(), 3);
  EXPECT_EQ(measurements[0].steps, StepTimeLearner::steps_per_measurement);
  EXPECT_EQ(measurements[2].steps, 3);
}

TEST_F(StepTimeLearnerTest, AResumedRunKnowsWhatItKnew) {
  StepTimeLearner first = learner();
  add(first, 3, 17);
  write_profile(own_, first.profile());
  StepTimeLearner second = learner();
  EXPECT_EQ(second.profile(), first.profile()) << "with the steps that are no whole measurement yet";
  EXPECT_THAT(second.introduction(),
              AllOf(HasSubstr("2.99 s give or take 1 %"), HasSubstr("after 15 steps in " + own_.string())));
  add(first, 3, 5);  // a whole measurement
  write_profile(own_, first.profile());
  EXPECT_EQ(learner().expected().seconds, first.expected().seconds);
}

// With many cells known, learning from each step would take as long as a quick step.
TEST_F(StepTimeLearnerTest, LearnsFromEveryStepAtFirstAndThenFromMeasurements) {
  StepTimeLearner run = learner();
  const auto changes = [&run] {
    const double before = run.expected().seconds;
    run.add(2 * before);
    return run.expected().seconds != before;
  };
  add(run, 3, StepTimeLearner::warm_up_steps);
  for (int64_t i = 0; i < StepTimeLearner::steps_per_measurement; ++i) EXPECT_TRUE(changes()) << i;
  for (int64_t i = 1; i < StepTimeLearner::steps_per_measurement; ++i) EXPECT_FALSE(changes()) << i;
  EXPECT_TRUE(changes());
}

TEST_F(StepTimeLearnerTest, BeginsWithTheProfileThatTheConfigurationNames) {
  StepTimeLearner first = learner();
  add(first, 3, 22);
  config_.cluster.profile = folder_.path() / "earlier.json";
  write_profile(config_.cluster.profile, first.profile());
  EXPECT_NEAR(learner().expected().seconds, 3, 0.03);
  // Of another configuration of the same model, the factors are known.
  config_.train.global_batch = 16;
  EXPECT_NEAR(learner().expected().seconds, 6, 1);
  // What the run has measured itself goes before.
  StepTimeLearner other = learner();
  add(other, 50, 200);
  write_profile(own_, other.profile());
  EXPECT_NEAR(learner().expected().seconds, 50, 0.5);
}

TEST_F(StepTimeLearnerTest, AProfileOfSomethingElse) {
  StepTimeLearner first = learner();
  add(first, 3, 22);
  write_profile(own_, first.profile());
  config_.cluster.description.flops_per_second = 2e9;
  // A run that goes on with another cluster measures anew, and says so.
  EXPECT_EQ(learner().profile().knowledge, Knowledge());
  EXPECT_THAT(learner().introduction(), HasSubstr("does not count: the description of the cluster is another one"));
  // One that a user has named for it is a mistake.
  config_.cluster.profile = own_;
  EXPECT_THAT(user_error([&] { learner(); }), HasSubstr("measured for something else"));
  write_file_durably(own_, "{");
  EXPECT_THAT(user_error([&] { learner(); }), HasSubstr("damaged"));
}

}  // namespace
}  // namespace copus
