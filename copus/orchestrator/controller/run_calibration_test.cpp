#include "copus/orchestrator/controller/run_calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "copus/orchestrator/testing/synthetic_job.h"

namespace copus {
namespace {

constexpr double step_seconds = 2;

// A run of a million seconds, of which this share is done.
Observation observation_at(double share) {
  Observation observation;
  observation.step = 1;
  observation.share_done = share;
  observation.phase = SchedulePhase::main;
  observation.noise_scale = 100;
  observation.elapsed_seconds = 1e6 * share;
  observation.seconds_left = 1e6 * (1 - share);
  return observation;
}

RunCalibration calibration_at(double share, double seconds, std::optional<double> critical_batch) {
  RunCalibration calibration;
  calibration.share_done = share;
  calibration.consumed_samples = 1000;
  calibration.batch = 16;
  calibration.noise_scale = 100;
  calibration.seconds = seconds;
  calibration.critical_batch = critical_batch;
  if (critical_batch) calibration.deviation = 0.4;
  return calibration;
}

TEST(RunCalibration, BranchesAreALadderAndALargerBatchAtTheSquareRootRate) {
  const std::vector<BranchOutcome> branches = branches_of({.batch = 4, .repetitions = 2});
  ASSERT_EQ(branches.size(), 12);
  for (const BranchOutcome& branch : branches) {
    EXPECT_EQ(static_cast<int64_t>(branch.samples) % static_cast<int64_t>(branch.batch), 0);
    EXPECT_TRUE(branch.batch == 4 || branch.batch == 32);
  }
  EXPECT_EQ(branches[5].batch, 32);
  EXPECT_EQ(branches[5].samples, 24 * 32);
  EXPECT_EQ(branches[4].rate_exponent, 0);
  EXPECT_EQ(branches[5].rate_exponent, 0.5);
  // The next repetition begins behind the longest branch of the one before.
  const auto longest = std::ranges::max(branches, {}, &BranchOutcome::samples);
  EXPECT_EQ(skipped_samples_of({.batch = 4, .repetitions = 2}, 1), static_cast<int64_t>(longest.samples));
}

TEST(RunCalibration, IsDueThreeTimesAtFourTimesTheShareOfTheOneBefore) {
  RunCalibrations calibrations(adapting_run());
  const auto is_due = [&](double share) {
    return calibrations.due(observation_at(share), 16, step_seconds).has_value();
  };
  EXPECT_FALSE(is_due(0.009));
  EXPECT_TRUE(is_due(0.01));
  calibrations.add(calibration_at(0.02, 10, 50));
  EXPECT_FALSE(is_due(0.079));
  EXPECT_TRUE(is_due(0.08));
  EXPECT_FALSE(is_due(0.51)) << "too late to pay";
  calibrations.add(calibration_at(0.08, 10, std::nullopt));
  EXPECT_TRUE(is_due(0.32));
  EXPECT_EQ(calibrations.critical_batches().size(), 1) << "one showed nothing";
  RunCalibrations early(adapting_run());
  for (int i = 0; i < 3; ++i) early.add(calibration_at(0.01, 10, 50));
  EXPECT_FALSE(early.due(observation_at(0.2), 16, step_seconds)) << "three are all";
  Observation noiseless = observation_at(0.02);
  noiseless.noise_scale = 0;
  EXPECT_FALSE(RunCalibrations(adapting_run()).due(noiseless, 16, step_seconds)) << "c phi is no prior there";
}

TEST(RunCalibration, StaysWithinItsBudget) {
  const RunConfig config = adapting_run();
  RunCalibrations calibrations(config);
  const double seconds = cost_of({.batch = 16, .repetitions = 1}) / 16 * step_seconds;
  const double allowed = config.adapt.explore_budget * 1e6;
  const auto request = calibrations.due(observation_at(0.01), 16, step_seconds);
  ASSERT_TRUE(request);
  EXPECT_LE(static_cast<double>(request->repetitions) * seconds, allowed / 3);
  EXPECT_DOUBLE_EQ(request->most_seconds, allowed);
  EXPECT_FALSE(calibrations.due(observation_at(0.01), 16, 100 * step_seconds)) << "a run of too few steps";
  calibrations.add(calibration_at(0.01, allowed - seconds, 50));
  EXPECT_FALSE(calibrations.due(observation_at(0.04), 16, step_seconds)) << "the first has spent it";
}

TEST(RunCalibration, WaitsForTheNoiseScaleAndTheMainPhase) {
  const RunCalibrations calibrations(adapting_run());
  Observation observation = observation_at(0.02);
  EXPECT_TRUE(calibrations.due(observation, 16, step_seconds));
  observation.phase = SchedulePhase::warm_up;
  EXPECT_FALSE(calibrations.due(observation, 16, step_seconds));
  observation.phase = SchedulePhase::main;
  observation.noise_scale.reset();
  EXPECT_FALSE(calibrations.due(observation, 16, step_seconds));
  observation = observation_at(0.02);
  observation.seconds_left = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(calibrations.due(observation, 16, step_seconds)) << "the length of the run is unknown";
}

TEST(RunCalibration, IsNotForRunsThatCannotUseIt) {
  const auto is_due = [](const RunConfig& config) {
    return RunCalibrations(config).due(observation_at(0.02), 16, step_seconds).has_value();
  };
  RunConfig config = adapting_run();
  EXPECT_TRUE(is_due(config));
  config.adapt.explore_budget = 0;
  EXPECT_FALSE(is_due(config));
  config = adapting_run();
  config.noise_scale.critical_batches = {{1e6, 1e4, 1e4, 0.1}};
  EXPECT_FALSE(is_due(config)) << "the user gives what is measured";
  config = adapting_run();
  config.noise_scale.critical_updates = 100;
  EXPECT_FALSE(is_due(config)) << "it would count twice";
  config = adapting_run();
  config.adapt.hold_in = {SchedulePhase::main};
  EXPECT_FALSE(is_due(config)) << "the batch never changes";
  config = adapting_run();
  config.adapt.policy = PolicyKind::copus_paper;
  EXPECT_FALSE(is_due(config));
  config = adapting_run();
  config.adapt.advise = true;
  EXPECT_FALSE(is_due(config));
}

// One calibration sets the multiple of the noise scale, also in a controller that continues from a logged state.
TEST(RunCalibration, DecisionsFollowIt) {
  const RunConfig config = adapting_run();
  SyntheticJob job(config);
  Controller controller(config, configuration_of(config), Knowledge());
  Course course;
  run_steps(job, controller, 200, course);
  EXPECT_DOUBLE_EQ(*course.decisions.back().critical_batch / *course.decisions.back().noise_scale, 2);
  controller.calibrated(calibration_at(0.01, 1, 30));
  Controller resumed(config, configuration_of(config), Knowledge());
  resumed.restore_state(controller.save_state());
  SyntheticJob same = job;
  Course of_resumed;
  run_steps(job, controller, 200, course);
  run_steps(same, resumed, 200, of_resumed);
  EXPECT_DOUBLE_EQ(*course.decisions.back().critical_batch / *course.decisions.back().noise_scale, 0.3);
  EXPECT_EQ(of_resumed.decisions.back().critical_batch, course.decisions.back().critical_batch);
  EXPECT_EQ(of_resumed.decisions.back().inputs_hash, course.decisions.back().inputs_hash);
}

TEST(RunCalibration, SaysWhatItShowed) {
  RunCalibration calibration = calibration_at(0.01, 10, 50);
  calibration.branches = 6;
  calibration.branch_batch = 128;
  EXPECT_EQ(describe(calibration), "critical batch 50 samples (33.5 to 74.6) by 6 branches in batches of 16 and 128");
  calibration = calibration_at(0.01, 0, std::nullopt);
  calibration.branch_batch = 128;
  calibration.reason = "no memory";
  EXPECT_EQ(describe(calibration), "no critical batch by 0 branches in batches of 16 and 128: no memory");
}

}  // namespace
}  // namespace copus
