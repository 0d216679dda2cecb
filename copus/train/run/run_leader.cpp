#include "copus/train/run/run_leader.h"

#include <filesystem>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/description/configuration_text.h"
#include "copus/report/files/performance_profile.h"
#include "copus/report/logs/decision_log.h"

namespace copus {

RunLeader::RunLeader(const RunPlan& plan, const TrainingState& state)
    : plan_(plan),
      written_step_(state.step),
      known_(knowledge_of_run(plan.config, plan.resume ? profile_path(plan) : std::filesystem::path())) {
  start_.emplace(start_controller(plan, state, knowledge()));
}

void RunLeader::begin(bool can_judge_speed) {
  const bool has_trained = plan_.state_is_in_memory && plan_.logged_step > 0;  // otherwise it may not exist yet
  const bool is_gone = has_trained && !std::filesystem::exists(plan_.directory / "config.toml");
  output_.emplace(plan_, plan_.resume ? std::optional(written_step_) : std::nullopt);
  const auto note = [this](const std::string& line) { output_->note(line); };
  if (is_gone) {
    note(concat("the run directory ", plan_.directory.string(),
                " was deleted or moved before rank 0 was lost: it is made ",
                "again, without the log so far; a checkpoint follows after the next step"));
    wants_checkpoint_ = true;
  }
  // Read before the log is cut after `written_step_`, because the command may be later.
  const bool is_paused = plan_.takes_over && is_run_paused(plan_.directory / "decisions.jsonl");
  adaptation_.emplace(plan_, written_step_, std::move(*start_), note);
  start_.reset();
  control_.emplace(plan_, *adaptation_, note);
  if (is_paused) control_->set_pause(written_step_, true);
  if (can_judge_speed) stragglers_.emplace(plan_.start.strategy);
}

void RunLeader::introduce(const Dataset& dataset, const World& world) {
  const StepTimeLearner* const step_times = told_step_times();
  output_->introduce(
      dataset, world,
      step_times != nullptr ? std::optional(concat(step_times->introduction(), "; ", known_->grounds)) : std::nullopt);
}

void RunLeader::log_step(StepRecord record, Trainer& trainer) {
  if (const auto& step_times = adaptation_->controller().step_times()) {
    record.predicted_step_seconds = step_times->expected().seconds;
  }
  output_->add(record, trainer);
  written_step_ = record.step;
  const Reaction reaction = adaptation_->after_step(record);
  if (reaction.decision) output_->add(*reaction.decision);
  if (reaction.rate_factor) trainer.announce_rate_factor(*reaction.rate_factor);
  announce(reaction.intent, trainer);
}

void RunLeader::obey_commands(int64_t step, bool standing, Trainer& trainer) {
  keep_directory();
  announce(control_->obey_commands(step, standing), trainer);
}

void RunLeader::keep_directory() {
  wants_checkpoint_ |= output_->keep_directory(adaptation_->has_log(), [this] {
    adaptation_->put_back_log();
    control_->put_back_folder();
  });
}

void RunLeader::log_switch(const SwitchReport& report, const Trainer& trainer) {
  control_->after_switch(report, adaptation_->after_switch(report));
  output_->add(report);
  if (stragglers_ && report.from.strategy != trainer.configuration().strategy) {
    stragglers_->change_layout(trainer.configuration().strategy);
  }
}

void RunLeader::log_ranks_changed(const RanksChanged& change, Trainer& trainer) {
  trainer.withdraw();
  output_->note(concat("step ", change.after_step, ": ", change.reason, "; ", to_string(change.to), " on ",
                       change.to.strategy.world_size(), " of ", change.ranks, " ranks; pause ",
                       format_number("%.3g s", change.pause_seconds)));
  adaptation_->after_ranks_changed(change);
  announce_rate(trainer);
  control_->after_ranks_changed();
  if (stragglers_) stragglers_->change_layout(trainer.configuration().strategy);
}

double RunLeader::seconds_of(const CalibrationRequest& request) const {
  return cost_of(request) / static_cast<double>(request.batch) * adaptation_->controller().expected_step().seconds;
}

void RunLeader::begin_calibration(const CalibrationRequest& request, int64_t step) {
  sync_logs();
  output_->note(concat("step ", step, ": trains ", branches_of(request).size(),
                       " branches to measure the critical batch, for about ", format_duration(seconds_of(request))));
}

void RunLeader::note_stragglers(Trainer& trainer) {
  if (!stragglers_) return;
  for (const auto& [step, seconds_by_rank] : trainer.take_seconds()) {
    for (const std::string& note : stragglers_->add(step, seconds_by_rank)) output_->note(note);
  }
}

void RunLeader::go_on_adapting(Trainer& trainer) const {
  announce_rate(trainer);
  announce(adaptation_->controller().under_way(), trainer);
}

// Announces the learning-rate factor that a policy has set.
void RunLeader::announce_rate(Trainer& trainer) const {
  const Controller& controller = adaptation_->controller();
  if (controller.has_policy() && !plan_.config.adapt.advise) trainer.announce_rate_factor(controller.rate_factor());
}

void RunLeader::announce(const std::optional<SwitchIntent>& intent, Trainer& trainer) {
  if (intent) trainer.announce(*intent);
}

void RunLeader::sync_logs() {
  output_->unless_gone([this] {
    output_->sync();
    adaptation_->sync();
  });
}

Knowledge RunLeader::knowledge() const {
  if (adaptation_) return adaptation_->controller().knowledge();
  return known_ ? known_->profile.knowledge : Knowledge();
}

std::optional<PerformanceProfile> RunLeader::profile() const {
  if (!known_) return std::nullopt;
  return PerformanceProfile{known_->profile.subject, knowledge()};
}

std::optional<std::string> RunLeader::conclusion() const {
  const StepTimeLearner* const step_times = told_step_times();
  return step_times != nullptr ? step_times->conclusion() : std::nullopt;
}

// Returns the predictions to report to the user; null with a policy, because they are for one configuration.
const StepTimeLearner* RunLeader::told_step_times() const {
  const Controller& controller = adaptation_->controller();
  return !controller.has_policy() && controller.step_times() ? &*controller.step_times() : nullptr;
}

}  // namespace copus
