#include "copus/train/trainer/switcher.h"

#include <utility>

#include "copus/base/error.h"

namespace copus {

Switcher::Switcher(std::unique_ptr<SwitchMethod> method, RankTraining& training, Survival& survival)
    : method_(std::move(method)), training_(training), survival_(survival) {}

void Switcher::announce(const SwitchIntent& intent) {
  COPUS_CHECK(training_.world.rank() == 0, "rank ", training_.world.rank(), " announces a switch");
  COPUS_CHECK(std::holds_alternative<std::monostate>(state_), "a switch is announced while another is under way");
  state_ = intent;
}

void Switcher::withdraw() {
  if (announced()) state_ = std::monostate();
}

std::optional<SwitchIntent> Switcher::announced() const {
  const auto* const intent = std::get_if<SwitchIntent>(&state_);
  return intent != nullptr ? std::optional(*intent) : std::nullopt;
}

void Switcher::prepare(const SwitchIntent& intent) { state_ = method_->prepare(intent); }

void Switcher::await_preparation() const {
  const auto* const pending = std::get_if<PendingSwitch>(&state_);
  if (pending != nullptr && pending->preparation.valid()) pending->preparation.wait();
}

std::optional<SwitchReport> Switcher::commit_if_due() {
  TrainingState& state = training_.state;
  auto* const due = std::get_if<PendingSwitch>(&state_);
  if (due == nullptr || state.step < due->intent.commit_after_step) return std::nullopt;
  PendingSwitch pending = std::move(*due);
  state_ = std::monostate();
  SwitchReport report;
  report.after_step = state.step;
  report.consumed_samples = state.consumed_samples;
  report.from = state.configuration;
  report.to = pending.intent.configuration;
  report.rate_factor = pending.intent.rate_factor;
  double seconds = 0;
  if (pending.refusal) {
    refuse(report, SwitchReport::Outcome::vetoed, *pending.refusal);
    if (pending.opening_seconds == 0) return report;
    seconds = report.pause_seconds = pending.opening_seconds;  // training paused, although groups were not connected
  } else {
    seconds = method_->commit(pending, report);
  }
  if (report.outcome == SwitchReport::Outcome::moved) {
    if (state.configuration != report.to) {
      state = after_switch(state, pending.intent);
      survival_.write_record(state);
    }
    training_.clock.forget_expectation();
  }
  state.add_pause(seconds);
  training_.clock.add_pause(report.pause_seconds);
  return report;
}

void refuse(SwitchReport& report, SwitchReport::Outcome outcome, const Obstacle& obstacle) {
  report.outcome = outcome;
  report.reason = obstacle.reason;
  report.is_lack_of_memory = obstacle.is_lack_of_memory;
}

TrainingState after_switch(TrainingState state, const SwitchIntent& intent) {
  state.rate_factor = intent.rate_factor;
  state.configuration = intent.configuration;
  return state;
}

}  // namespace copus
