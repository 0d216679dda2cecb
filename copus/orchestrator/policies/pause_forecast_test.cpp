// Tests of the pauses that a controller expects of re-layouts (Controller::pause_seconds): planned at first, then
// corrected by measured pauses.
#include <gmock/gmock.h>

#include <algorithm>
#include <optional>

#include "copus/orchestrator/controller/controller.h"
#include "copus/orchestrator/testing/synthetic_job.h"
#include "copus/performance/relayout_forecast.h"
#include "copus/placement/relayout_plan.h"

namespace copus {
namespace {

class PauseForecast : public testing::Test {
 protected:
  PauseForecast() { controller_.command({.kind = Command::Kind::pin, .target = {}}); }

  Controller controller() const { return {config_, configuration_of(config_), Knowledge()}; }

  double planned(const ParallelStrategy& from, const ParallelStrategy& to) const {
    RelayoutForecast forecast(config_.model, config_.train.sequence_length, config_.cluster.description,
                              training_system_of(config_));
    const double seconds = forecast.seconds(from, to);
    EXPECT_GT(seconds, 0);
    return seconds;
  }

  // Moves the job there, with a pause of `seconds`.
  void move(const ParallelStrategy& strategy, double seconds) {
    run_steps(job_, controller_, 5, course_);
    Configuration target = controller_.current();
    target.strategy = strategy;
    controller_.command({.kind = Command::Kind::force, .target = target});
    controller_.report({.after_step = job_.step(),
                        .consumed_samples = 1000 * job_.step(),
                        .from = controller_.current(),
                        .to = target,
                        .outcome = SwitchReport::Outcome::moved,
                        .reason = "",
                        .pause_seconds = seconds});
  }

  RunConfig config_ = adapting_run();
  const ParallelStrategy stages_ = config_.parallel, data_{.data_parallel = 4, .zero_stage = 1},
                         tensors_{.tensor_parallel = 4};
  SyntheticJob job_{config_};
  Controller controller_ = controller();
  Course course_;
};

TEST_F(PauseForecast, IsThePlansUntilPausesWereMeasured) {
  ASSERT_NE(planned(stages_, data_), planned(stages_, tensors_));
  EXPECT_EQ(controller_.pause_seconds(data_), planned(stages_, data_));
  EXPECT_EQ(controller_.pause_seconds(tensors_), planned(stages_, tensors_));
}

TEST_F(PauseForecast, IsCorrectedByTheMedianOfWhatCameOnTop) {
  move(data_, 3 + planned(stages_, data_));
  EXPECT_DOUBLE_EQ(controller_.pause_seconds(stages_), 3 + planned(data_, stages_));
  EXPECT_DOUBLE_EQ(controller_.pause_seconds(tensors_), 3 + planned(data_, tensors_));
  move(tensors_, 10 + planned(data_, tensors_));
  move(data_, 4 + planned(tensors_, data_));
  EXPECT_DOUBLE_EQ(controller_.pause_seconds(stages_), 4 + planned(data_, stages_));
}

TEST_F(PauseForecast, IsCorrectedByAFactorWhereMovesAreQuickerThanPlanned) {
  move(data_, planned(stages_, data_) / 4);
  EXPECT_DOUBLE_EQ(controller_.pause_seconds(tensors_), planned(data_, tensors_) / 4);
}

TEST_F(PauseForecast, AMoveOfRecomputeAloneCostsWhatSuchMovesTookAndSaysNothingOfOthers) {
  ParallelStrategy recomputed = stages_;
  recomputed.recompute = Recompute::full;
  EXPECT_EQ(controller_.pause_seconds(recomputed), 0);
  move(recomputed, 5);
  EXPECT_EQ(controller_.pause_seconds(stages_), 5) << "what moves of no state took";
  EXPECT_EQ(controller_.pause_seconds(data_), planned(stages_, data_));
}

TEST_F(PauseForecast, IsWhatDecisionsCountWith) {
  const auto relayouts_after_one_of = [&](double seconds) {
    SyntheticJob job(config_);
    Controller steered = controller();
    Course course;
    steered.command({.kind = Command::Kind::pin, .target = {}});
    run_steps(job, steered, 5, course);
    Configuration target = steered.current();
    target.strategy = data_;
    job.expect(steered.command({.kind = Command::Kind::force, .target = target}).value());
    std::optional<SwitchReport> report;
    while (!(report = job.switch_if_due())) steered.observe(job.next_step());
    report->pause_seconds = seconds;
    steered.report(*report);
    steered.command({.kind = Command::Kind::unpin, .target = {}});
    run_steps(job, steered, 600, course, [&](Observation& seen) { seen.elapsed_seconds += seconds; });
    return std::count_if(course.decisions.begin(), course.decisions.end(), [](const Decision& decision) {
      return decision.moves && decision.choice.target->strategy != decision.current.strategy;
    });
  };
  EXPECT_GT(relayouts_after_one_of(planned(stages_, data_)), 0);
  EXPECT_EQ(relayouts_after_one_of(1e4), 0);
}

// On the real clock, each rank of one machine copies its state in memory, at 4e9 bytes/s.
TEST_F(PauseForecast, IsThatOfCopyingOnOneMachineOnTheRealClock) {
  config_.cluster.clock = ClockKind::real;
  config_.cluster.description.ranks_per_node = 4;
  config_.cluster.description.device.memory_bytes_per_second = 1e10;
  config_.cluster.description.device.matmul_flops_per_second = 1e9;
  const RelayoutRequest request{.model = config_.model,
                                .sequence_length = config_.train.sequence_length,
                                .from = stages_,
                                .to = data_,
                                .recipe = state_recipe(OptimizerKind::adamw, DType::f32),
                                .ranks_per_node = 4};
  const auto bytes = static_cast<double>(plan_relayout(request, 0).bytes_copied);
  EXPECT_DOUBLE_EQ(controller().pause_seconds(data_), bytes / 4 / 4e9);
}

}  // namespace
}  // namespace copus
