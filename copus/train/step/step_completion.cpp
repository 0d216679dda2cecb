#include "copus/train/step/step_completion.h"

#include <utility>

#include "copus/base/error.h"
#include "copus/statistics/learning_rate_scaling.h"
#include "copus/train/optimizer/optimizer.h"
#include "copus/train/step/probe_plan.h"

namespace copus {

namespace {

double batch_of(const TrainingState& state) { return static_cast<double>(state.configuration.global_batch); }

}  // namespace

StepCompletion::StepCompletion(const RunConfig& config)
    : config_(config), learning_rate_(config.optimizer, config.train), rule_(make_update_rule(config)) {}

int64_t StepCompletion::tokens_per_step(const TrainingState& state) const {
  return state.configuration.global_batch * config_.train.sequence_length;
}

// Returns an update's learning rate: the schedule's rate at its reference batch, times the factor for the current batch
// (which Goodput also uses), times the optimizer's factor. If time limits the run, the schedule uses rank 0's time,
// which the ranks received with the step's numbers. A process that completes the step of a failed rank knows only this
// time.
double StepCompletion::learning_rate(const StepAgreement& agreed, const TrainingState& state,
                                     double optimizer_factor) const {
  const int64_t tokens = state.consumed_tokens + tokens_per_step(state);
  return learning_rate_.at({tokens, state.elapsed_seconds + agreed.seconds_of_rank_0}) *
         agreed.rate_factor.value_or(state.rate_factor) * optimizer_factor;
}

WeightUpdate StepCompletion::next_update(const StepAgreement& agreed, const TrainingState& state) const {
  const double batch = batch_of(state);
  WeightUpdate update{.number = state.optimizer_steps + 1, .scalars = rule_->after_update(state.optimizer, batch)};
  const double optimizer_factor = rule_->rate_factor(update.scalars);
  update.learning_rate = learning_rate(agreed, state, optimizer_factor);
  update.gradient_factor = clip_factor(agreed.gradient_norm(), config_.train.clip_norm);
  if (config_.optimizer.scale_weight_decay) {
    update.weight_decay_factor = weight_decay_factor(batch, static_cast<double>(reference_batch_of(config_)),
                                                     agreed.rate_factor.value_or(state.rate_factor) * optimizer_factor);
  }
  return update;
}

std::optional<WeightUpdate> StepCompletion::update_of(const StepAgreement& agreed, const TrainingState& state) const {
  if (!agreed.is_finite()) return std::nullopt;
  return next_update(agreed, state);
}

StepRecord StepCompletion::complete(const StepAgreement& agreed, const std::optional<WeightUpdate>& update,
                                    bool measures_noise, TrainingState& state) const {
  const double lr = (update ? *update : next_update(agreed, state)).learning_rate;
  if (agreed.rate_factor) state.rate_factor = *agreed.rate_factor;
  std::optional<NormObservation> norms;
  if (update) {
    state.optimizer_steps = update->number;
    state.optimizer = update->scalars;
    state.skipped_in_a_row = 0;
    if (measures_noise) norms = observe_noise(agreed, state);
    observe_dual(agreed, state);
  } else if (agreed.lacks_loss()) {
    if (measures_noise) state.observed_samples += state.configuration.global_batch;  // no loss, no noise information
  } else {
    skip(agreed, lr, state);
  }
  state.step += 1;
  state.consumed_samples += state.configuration.global_batch;
  state.consumed_tokens += tokens_per_step(state);
  state.elapsed_seconds += agreed.seconds;
  return record_of(agreed, lr, norms, measures_noise, state);
}

void StepCompletion::observe_dual(const StepAgreement& agreed, TrainingState& state) const {
  if (!agreed.dual) return;
  const double part = agreed.dual->part, others = batch_of(state) - part;
  const auto add = [&](DualNoiseAverage& average, const DualNorms& norms) {
    average = observe(average, {norms.noise, norms.signal, part, part / others});
  };
  add(state.sign_noise, agreed.dual->sign);
  add(state.spectral_noise, agreed.dual->spectral);
  if (agreed.dual->preconditioned) add(state.preconditioned_noise, *agreed.dual->preconditioned);
}

void StepCompletion::skip(const StepAgreement& agreed, double learning_rate, TrainingState& state) {
  state.skipped_steps += 1;
  state.skipped_samples += state.configuration.global_batch;
  state.skipped_in_a_row += 1;
  if (state.skipped_in_a_row < max_skipped_in_a_row) return;
  throw TrainingDiverged(
      concat("training has diverged: the last ", max_skipped_in_a_row, " steps up to step ", state.step + 1,
             " had a loss or gradient that is not finite (loss ", agreed.loss, ", gradient norm ",
             agreed.gradient_norm(), ", learning rate ", learning_rate,
             "); try a lower optimizer.lr, a longer optimizer.warmup_tokens or a smaller train.clip_norm, "
             "and check the data"));
}

StepRecord StepCompletion::record_of(const StepAgreement& agreed, double learning_rate,
                                     const std::optional<NormObservation>& norms, bool measures_noise,
                                     const TrainingState& state) const {
  const Configuration& configuration = state.configuration;
  StepRecord record;
  record.step = state.step;
  record.consumed_samples = state.consumed_samples;
  record.consumed_tokens = state.consumed_tokens;
  record.loss_tokens = agreed.loss_tokens;
  record.loss = agreed.loss;
  record.lr = learning_rate;
  record.rate_factor = state.rate_factor;
  const RunProgress progress{state.consumed_tokens, state.elapsed_seconds};
  record.phase = learning_rate_.phase(progress);
  record.grad_norm = agreed.gradient_norm();
  if (agreed.is_finite()) record.clipped = is_clipped(record.grad_norm, config_.train.clip_norm);
  record.step_seconds = agreed.seconds;
  record.tokens_per_second = static_cast<double>(tokens_per_step(state)) / agreed.seconds;
  record.strategy = configuration.strategy;
  record.global_batch = configuration.global_batch;
  record.micro_batch = configuration.micro_batch;
  record.skipped_samples = state.skipped_samples;
  record.elapsed_seconds = state.elapsed_seconds;
  record.seconds_left = seconds_left(config_.train, state.consumed_tokens, state.elapsed_seconds, state.paused_seconds);
  record.share_done = learning_rate_.share(progress);
  if (norms) {
    record.small_batch = norms->small_batch;
    record.small_batch_squared_norm = norms->small_squared_norm;
  }
  if (measures_noise) add_noise_scale(config_, state.noise_average, record);
  if (agreed.dual) add_dual_noise(state.sign_noise, state.spectral_noise, state.preconditioned_noise, record);
  return record;
}

// Computes norms per sample. The step's gradient is the gradient of the sum of token losses, divided by the tokens of
// the global batch of B samples. Each sample contributes a term to it, and the sample's own gradient is defined as B
// times this term, so that the mean of all B gradients is the step's gradient. The mean gradient of b samples is B / b
// times their terms.
std::optional<NormObservation> StepCompletion::observe_noise(const StepAgreement& agreed, TrainingState& state) const {
  const Configuration& configuration = state.configuration;
  const ProbePlan plan = plan_probe(config_, configuration, state.step + 1, true);
  if (plan.source == ProbeSource::none) return std::nullopt;
  NormObservation observation;
  observation.small_batch = static_cast<double>(plan.small_batch);
  observation.large_batch = static_cast<double>(configuration.global_batch);
  const double factor = observation.large_batch / observation.small_batch;
  observation.small_squared_norm =
      agreed.small_squared_norms / static_cast<double>(configuration.strategy.data_parallel) * factor * factor;
  observation.large_squared_norm = agreed.squared_norm;
  const NoiseWindow window{.samples = config_.noise_scale.window_samples};
  // Samples of earlier unmeasured steps count with this measurement, except those of skipped steps.
  const int64_t used = state.consumed_samples + configuration.global_batch - state.skipped_samples;
  const auto samples = static_cast<double>(used - std::exchange(state.observed_samples, used));
  state.noise_average = observe(state.noise_average, observation, samples, window);
  return observation;
}

}  // namespace copus
