#include "copus/train/trainer/training_step.h"

#include <utility>

#include "copus/base/error.h"

namespace copus {

TrainingStep::TrainingStep(RankTraining& training, GradientSource& gradients, Survival& survival, Switcher& switcher)
    : training_(training),
      gradients_(gradients),
      survival_(survival),
      switcher_(switcher),
      completion_(training.config),
      measures_noise_(training.config.noise_scale.enabled) {}

void TrainingStep::announce_rate_factor(double factor) {
  COPUS_CHECK(training_.world.rank() == 0, "rank ", training_.world.rank(), " announces a learning rate");
  announced_rate_factor_ = factor;
}

StepRecord TrainingStep::run(const StopQuestion& stop) {
  TrainingState& state = training_.state;
  RankModel& model = *training_.model;
  training_.clock.begin();
  training_.recorder.begin_step(state.step + 1, std::exchange(traces_next_, false));

  // The main gradients become the gradient of the mean loss over the global batch.
  const int64_t step = state.step + 1;
  const bool measures = measures_noise_ || measures_dual_norms(training_.config, step);
  const ProbePlan plan = plan_probe(training_.config, state.configuration, step, measures);
  const int64_t loss_tokens = training_.dataset.loss_tokens(state.data_position(), state.configuration.global_batch);
  model.begin_gradients(plan, step);
  const StepGradients gradients = gradients_.compute(plan, loss_tokens > 0 ? 1 / static_cast<double>(loss_tokens) : 0);

  // All ranks agree on the step's numbers.
  StepReport report;
  report.squared_norm = measure_norm();
  std::optional<DualNormsOfStep> dual;
  if (loss_tokens > 0) dual = prepare_update(report.squared_norm, plan);
  add_sums(gradients, report);
  training_.recorder.wait_at("waiting for all ranks");
  report.stop = stop ? stop() : StopReason::none;
  report.begin = training_.clock.begun_at();
  report.now = training_.world.clock().now();
  report.intent = switcher_.announced();
  report.rate_factor = std::exchange(announced_rate_factor_, std::nullopt);
  const StepAgreement agreed = agree(report, loss_tokens, dual);
  // Right after the agreement no rank has to wait for a late one.
  gather_seconds_of_step();

  // The weights change, unless the numbers are not finite.
  const std::optional<WeightUpdate> update = completion_.update_of(agreed, state);
  if (update) {
    update_weights(*update);
  } else {
    model.optimizer->discard_directions();
  }
  StepRecord record = completion_.complete(agreed, update, measures_noise_, state);
  record.switch_seconds = training_.clock.take_pause();
  survival_.end_step(record, state);
  training_.clock.end(agreed.now);
  if (agreed.intent) switcher_.prepare(*agreed.intent);
  return record;
}

// Returns this rank's part of the gradient's squared norm. The host waits for a GPU here, because ranks agree on a step
// only after its work is done. The norm is the last operation on the device, so all earlier operations are done as
// well.
ExactSum TrainingStep::measure_norm() {
  training_.recorder.begin({.category = "optimizer", .name = "norm", .part = StepPart::optimizer},
                           "the gradient's norm");
  return training_.model->optimizer->squared_gradient_norm();
}

// Adds this rank's part of the other sums on which the ranks agree. On a GPU, reading the losses waits for the work on
// unsharded matrices.
void TrainingStep::add_sums(const StepGradients& gradients, StepReport& report) {
  RankModel& model = *training_.model;
  report.small_squared_norms = gradients.small_squared_norms;
  report.small_squared_norms.add(model.probe.take());
  if (model.groups.here().tensor == 0) {
    for (const at::Tensor& losses : gradients.losses) report.loss.add(add_up(losses));
  }
}

// As RankModel::prepare_update.
std::optional<DualNormsOfStep> TrainingStep::prepare_update(const ExactSum& squared_norm, const ProbePlan& plan) {
  // Ranks differ in how many matrices they own, so this time is not compared between them.
  training_.recorder.begin({.category = "optimizer", .name = "whole matrices", .part = std::nullopt}, "whole matrices");
  return training_.model->prepare_update(squared_norm, plan, training_.state.step + 1,
                                         training_.configuration().global_batch);
}

StepAgreement TrainingStep::agree(const StepReport& report, int64_t loss_tokens,
                                  const std::optional<DualNormsOfStep>& dual) {
  Communicator& everyone = training_.model->groups.everyone();
  StepAgreement agreed = agree_on_numbers(report, everyone);
  agreed.dual = dual;
  agreed.loss_tokens = loss_tokens;
  agreed.loss /= static_cast<double>(loss_tokens);  // without tokens there is no mean: NaN
  survival_.decide(training_.state.step + 1, agreed);
  agree_on_time(agreed, everyone);
  survival_.confirm(agreed, training_.state);
  gradients_.set_seconds(agreed);
  training_.stop_reason = agreed.stop;
  return agreed;
}

void TrainingStep::gather_seconds_of_step() {
  const PartSeconds seconds = training_.recorder.take_seconds();
  if (!gathers_seconds_) return;
  training_.clock.leave_out([&] { training_.seconds.add(training_.state.step + 1, seconds, training_.world); });
}

void TrainingStep::update_weights(const WeightUpdate& update) {
  training_.recorder.begin({.category = "optimizer", .name = "update", .part = StepPart::optimizer},
                           "update of the weights");
  training_.model->optimizer->step(update, survival_.begin_update(update));
  training_.recorder.wait_at("gathering the weights");
  training_.model->weights.start();  // the next forward pass waits for them
}

}  // namespace copus
