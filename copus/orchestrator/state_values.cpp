#include "copus/orchestrator/state_values.h"

#include <array>
#include <map>

#include "copus/base/error.h"
#include "copus/description/configuration_text.h"
#include "copus/orchestrator/controller/switch_outcomes.h"
#include "copus/orchestrator/observation.h"
#include "copus/performance/step_time.h"
#include "copus/statistics/gradient_noise.h"

namespace copus {

void StateValues::visit_knowledge(Knowledge& knowledge, const FactorPrior& prior) {
  std::map<Configuration, MeasuredCell> cells = knowledge.cells();
  visit(cells);
  if (is_reading()) knowledge = Knowledge(std::move(cells), prior);
}

void StateValues::require(int64_t fact) {
  int64_t then = fact;
  visit(then);
  if (then != fact) throw UserError("it was written under settings that do not fit the present ones");
}

void StateValues::require_end() const {
  if (place_ != read_->size()) throw UserError(concat("it has ", read_->size(), " values. Expected ", place_, "."));
}

const std::string& StateValues::next() {
  if (place_ >= read_->size()) throw UserError(concat("it has only ", read_->size(), " values. Expected more."));
  return (*read_)[place_++];
}

void StateValues::refuse(const std::string& value) const {
  throw UserError(concat("value ", place_, " is \"", value, "\". Expected a number."));
}

void StateValues::visit(bool& value) {
  int64_t number = value ? 1 : 0;
  visit(number);
  value = number != 0;
}

void StateValues::visit(double& value) {
  if (is_reading()) {
    value = parse<double>();
    return;
  }
  std::array<char, 32> digits;
  written_.emplace_back(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
}

void StateValues::visit(std::string& value) {
  if (is_reading()) {
    value = next();
  } else {
    written_.push_back(value);
  }
}

void StateValues::visit(Configuration& value) {
  if (is_reading()) {
    value = parse_configuration(next());
  } else {
    written_.push_back(to_string(value));
  }
}

void StateValues::visit(ParallelStrategy& value) {
  if (is_reading()) {
    value = parse_strategy(next());
  } else {
    written_.push_back(to_string(value));
  }
}

void StateValues::visit(Observation& value) {
  (*this)(value.step, value.consumed_samples, value.loss, value.grad_norm, value.step_seconds, value.elapsed_seconds,
          value.learning_rate, value.phase, value.clipped, value.small_batch, value.small_batch_squared_norm,
          value.noise_scale, value.noise_scale_low, value.noise_scale_high, value.seconds_left, value.share_done);
}

void StateValues::visit(LossPoint& value) { (*this)(value.elapsed_seconds, value.loss); }

void StateValues::visit(MeasuredCriticalBatch& value) {
  (*this)(value.tokens, value.noise_scale, value.critical_batch, value.deviation);
}

void StateValues::visit(NormObservation& value) {
  (*this)(value.small_batch, value.small_squared_norm, value.large_batch, value.large_squared_norm);
}

void StateValues::visit(Measurement& value) { (*this)(value.steps, value.median_seconds, value.relative_spread); }

void StateValues::visit(MeasuredCell& value) {
  visit_parts(value.parts, [this](const char* /*name*/, double& seconds) { visit(seconds); });
  visit(value.measurements);
}

void StateValues::visit(Corrected& value) { (*this)(value.seconds, value.relative_deviation); }

void StateValues::visit(Realised& value) {
  (*this)(value.decision_step, value.from, value.to, value.predicted_step_seconds, value.realised_step_seconds,
          value.predicted_gain, value.realised_gain, value.progress_ratio);
}

void StateValues::visit(SwitchIntent& value) {
  (*this)(value.configuration, value.commit_after_step, value.rate_factor, value.inputs_hash);
}

}  // namespace copus
