#include "copus/orchestrator/predictions/step_time_learner.h"

#include <gmock/gmock.h>

#include "copus/orchestrator/testing/small_run.h"

namespace copus {
namespace {

using testing::HasSubstr;

class StepTimeLearnerTest : public testing::Test {
 protected:
  StepTimeLearner learner(Knowledge known = Knowledge()) const {
    return {config_, configuration_of(config_), std::move(known)};
  }

  static void add(StepTimeLearner& learner, double seconds, int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) learner.add(seconds);
  }

  RunConfig config_ = small_run();
};

TEST_F(StepTimeLearnerTest, SpeedIsThatOfTheClock) {
  ClusterConfig cluster = small_run().cluster;
  EXPECT_TRUE(is_speed_known(cluster.as_timed()));
  // Runs on a real clock compute at the device's rate, not at teraflops_per_rank.
  cluster.clock = ClockKind::wall;
  EXPECT_FALSE(is_speed_known(cluster.as_timed()));
  cluster.description.device.matmul_flops_per_second = 1e9;
  EXPECT_TRUE(is_speed_known(cluster.as_timed()));
  EXPECT_FALSE(is_speed_known(ClusterDescription()));
}

TEST_F(StepTimeLearnerTest, MemoryIsThatOfARunThatMeasuresDualNorms) {
  EXPECT_FALSE(executed_system_of(config_).measures_dual_norms);
  config_.noise_scale.dual_interval = 16;
  EXPECT_TRUE(executed_system_of(config_).measures_dual_norms);
}

TEST_F(StepTimeLearnerTest, ApproachesWhatStepsTake) {
  StepTimeLearner run = learner();
  const double truth = 2 * run.expected().seconds;
  const double doubt = run.expected().relative_deviation;
  EXPECT_EQ(run.conclusion(), std::nullopt);
  add(run, truth, StepTimeLearner::warm_up_steps + 1);
  EXPECT_NEAR(run.expected().seconds / truth, 1, 0.1);  // each step is used at once
  add(run, truth, 40);
  EXPECT_NEAR(run.expected().seconds / truth, 1, 0.01);
  EXPECT_LT(run.expected().relative_deviation, 0.1 * doubt);
  EXPECT_THAT(*run.conclusion(), HasSubstr("median of 41"));
}

TEST_F(StepTimeLearnerTest, TheFirstStepsOfAProcessAndSlowOnesDoNotCount) {
  StepTimeLearner run = learner();
  const double usual = run.expected().seconds;
  add(run, 50 * usual, StepTimeLearner::warm_up_steps);
  EXPECT_EQ(run.knowledge(), Knowledge());
  EXPECT_EQ(run.expected().seconds, usual);
  for (int64_t i = 0; i < 50; ++i) run.add(i % 7 == 3 ? 9 * usual : usual);
  EXPECT_NEAR(run.expected().seconds / usual, 1, 0.01);
  const Knowledge known = run.knowledge();
  run.begin_warm_up();
  EXPECT_EQ(run.knowledge(), known);
  add(run, 50 * usual, StepTimeLearner::warm_up_steps);
  EXPECT_EQ(run.knowledge(), known) << "of another process";
}

TEST_F(StepTimeLearnerTest, ManyStepsBecomeAMeasurement) {
  StepTimeLearner run = learner();
  add(run, 1, StepTimeLearner::warm_up_steps + 2 * StepTimeLearner::steps_per_measurement + 3);
  EXPECT_EQ(run.counted_steps(), 2 * StepTimeLearner::steps_per_measurement + 3);
  const Knowledge knowledge = run.knowledge();
  const auto& cells = knowledge.cells();
  ASSERT_EQ(cells.size(), 1);
  EXPECT_EQ(cells.begin()->first, configuration_of(config_));
  const auto& measurements = cells.begin()->second.measurements;
  ASSERT_EQ(measurements.size(), 3);
  EXPECT_EQ(measurements[0].steps, StepTimeLearner::steps_per_measurement);
  EXPECT_EQ(measurements[2].steps, 3);
}

// Once many cells are known, learning from a step would take as long as a quick step itself.
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

TEST_F(StepTimeLearnerTest, EveryConfigurationIsMeasuredOnItsOwnAndWarmsUp) {
  StepTimeLearner run = learner();
  const Configuration first = configuration_of(config_);
  Configuration second = first;
  second.global_batch = 16;
  const double usual = run.expected().seconds;
  add(run, 3 * usual, StepTimeLearner::warm_up_steps + 4);
  run.change_configuration(second);
  // The steps in the first configuration count although they are no whole measurement. They also inform the second.
  EXPECT_EQ(run.knowledge().measured_steps(first), 4);
  EXPECT_GT(run.expected().seconds, 4 * usual);
  EXPECT_EQ(run.counted_steps(), 0);
  add(run, 100 * usual, StepTimeLearner::warm_up_steps);
  add(run, 5 * usual, 3);
  EXPECT_EQ(run.knowledge().measured_steps(first), 4);
  EXPECT_EQ(run.knowledge().measured_steps(second), 3);
  EXPECT_NEAR(run.knowledge().cells().at(second).seconds() / (5 * usual), 1, 1e-12);
}

TEST_F(StepTimeLearnerTest, BeginsWithWhatIsKnown) {
  StepTimeLearner first = learner();
  add(first, 3, 22);
  EXPECT_NEAR(learner(first.knowledge()).expected().seconds, 3, 0.03);
  EXPECT_THAT(learner(first.knowledge()).introduction(), HasSubstr("3 s give or take 1 %"));
  // The factors are known for another configuration of the same model.
  config_.train.global_batch = 16;
  EXPECT_NEAR(learner(first.knowledge()).expected().seconds, 6, 1);
}

}  // namespace
}  // namespace copus
