#include "copus/train/run_leader.h"

#include <filesystem>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/units.h"
#include "copus/description/configuration_text.h"
#include "copus/report/performance_profile.h"

namespace copus {

RunLeader::RunLeader(const RunPlan& plan, const TrainingState& state)
    : plan_(plan),
      written_step_(state.step),
      known_(knowledge_of_run(plan.config, plan.resume ? profile_path(plan) : std::filesystem::path())) {
  if (plan.config.adapt.policy == PolicyKind::none) return;
  start_.emplace(start_controller(plan, state, knowledge()));
}

void RunLeader::begin(bool can_judge_speed) {
  output_.emplace(plan_, plan_.resume ? std::optional(written_step_) : std::nullopt);
  if (start_) {
    adaptation_.emplace(plan_, written_step_, std::move(*start_),
                        [this](const std::string& line) { output_->note(line); });
    start_.reset();
  } else if (known_) {
    learner_.emplace(plan_.config, plan_.start, known_->profile.knowledge);
  }
  control_.emplace(plan_, adaptation_ ? &*adaptation_ : nullptr,
                   [this](const std::string& line) { output_->note(line); });
  if (can_judge_speed) stragglers_.emplace(plan_.start.strategy);
}

void RunLeader::introduce(const Dataset& dataset) {
  output_->introduce(dataset,
                     learner_ ? std::optional(concat(learner_->introduction(), "; ", known_->grounds)) : std::nullopt);
}

void RunLeader::add(StepRecord record, Trainer& trainer) {
  if (adaptation_) record.predicted_step_seconds = adaptation_->controller().expected_step().seconds;
  if (learner_) {
    record.predicted_step_seconds = learner_->expected().seconds;
    if (!record.skipped()) learner_->add(record.step_seconds);
  }
  output_->add(record, trainer);
  written_step_ = record.step;
  if (!adaptation_) return;
  const Reaction reaction = adaptation_->after_step(record);
  if (reaction.decision) output_->add(*reaction.decision);
  if (reaction.rate_factor) trainer.announce_rate_factor(*reaction.rate_factor);
  announce(reaction.intent, trainer);
}

void RunLeader::look(int64_t step, bool standing, Trainer& trainer) {
  keep_directory();
  announce(control_->look(step, standing), trainer);
}

void RunLeader::keep_directory() {
  const bool has_decisions = !adaptation_ || adaptation_->has_log();
  wants_checkpoint_ |= output_->keep_directory(has_decisions, [this] {
    if (adaptation_) adaptation_->put_back_log();
    control_->put_back_folder();
  });
}

void RunLeader::add(const SwitchReport& report, const Trainer& trainer) {
  control_->after_switch(report, adaptation_->after_switch(report));
  output_->add(report);
  if (stragglers_ && report.from.strategy != trainer.configuration().strategy) {
    stragglers_->change_layout(trainer.configuration().strategy);
  }
}

void RunLeader::add(const RanksChanged& change, Trainer& trainer) {
  trainer.withdraw();
  output_->note(concat("step ", change.after_step, ": ", change.reason, "; ", to_string(change.to), " on ",
                       change.to.strategy.world_size(), " of ", change.ranks, " ranks; pause ",
                       format_number("%.3g s", change.pause_seconds)));
  if (adaptation_) {
    adaptation_->after_ranks_changed(change);
    if (!plan_.config.adapt.advise) trainer.announce_rate_factor(adaptation_->controller().rate_factor());
  }
  control_->after_ranks_changed();
  if (learner_) learner_.emplace(plan_.config, change.to, learner_->knowledge());
  if (stragglers_) stragglers_->change_layout(trainer.configuration().strategy);
}

void RunLeader::note_stragglers(Trainer& trainer) {
  if (!stragglers_) return;
  for (const auto& [step, seconds_by_rank] : trainer.take_seconds()) {
    for (const std::string& note : stragglers_->add(step, seconds_by_rank)) output_->note(note);
  }
}

void RunLeader::go_on_adapting(Trainer& trainer) const {
  if (!adaptation_) return;
  const Controller& controller = adaptation_->controller();
  if (!plan_.config.adapt.advise) trainer.announce_rate_factor(controller.rate_factor());
  announce(controller.under_way(), trainer);
}

void RunLeader::announce(const std::optional<SwitchIntent>& intent, Trainer& trainer) const {
  if (intent) trainer.announce(*intent);
}

void RunLeader::sync_logs() {
  output_->unless_gone([this] {
    output_->sync();
    if (adaptation_) adaptation_->sync();
  });
}

Knowledge RunLeader::knowledge() const {
  if (adaptation_) return adaptation_->controller().knowledge();
  if (learner_) return learner_->knowledge();
  return known_ ? known_->profile.knowledge : Knowledge();
}

std::optional<PerformanceProfile> RunLeader::profile() const {
  if (!known_) return std::nullopt;
  return PerformanceProfile{known_->profile.subject, knowledge()};
}

std::optional<std::string> RunLeader::conclusion() const { return learner_ ? learner_->conclusion() : std::nullopt; }

}  // namespace copus
