#include "copus/orchestrator/controller/controller.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/quantile.h"
#include "copus/base/text/units.h"
#include "copus/config/step_schedule.h"
#include "copus/orchestrator/predictions/candidates.h"
#include "copus/record/batch_worth.h"

namespace copus {

namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

// The observation as a replay reads it: a log stores values that are not finite as null.
Observation as_logged(Observation observation) {
  for (double* value : {&observation.loss, &observation.grad_norm}) {
    if (!std::isfinite(*value)) *value = unknown;
  }
  return observation;
}

bool is_relayout(const Configuration& from, const Configuration& to) { return from.strategy != to.strategy; }

// The policy of the run; null if adapt.policy is "none".
std::unique_ptr<Policy> policy_of(const JobConfig& config, const std::string& file) {
  return config.adapt.policy == PolicyKind::none ? nullptr : make_policy(config, file);
}

}  // namespace

Controller::Controller(const AnyConfig& config, const Configuration& initial, const Knowledge& knowledge,
                       const std::string& file, std::optional<double> rate_factor)
    : config_(job_of(config)),
      policy_(policy_of(config_, file)),
      job_(job_model_of(config, knowledge)),
      table_(policy_ && (predicts_steps(config) || traits_of(config_.adapt.policy).compares_step_times)
                 ? job_->table(knowledge, initial.strategy.world_size())
                 : PerformanceTable()),
      learner_(predicts_steps(config) ? std::optional<StepTimeLearner>(std::in_place, job_, initial, knowledge)
                                      : std::nullopt),
      current_(initial),
      rate_cap_(rate_factor ? cap_of_factor(rate_rule_of(config_), *rate_factor)
                            : initial_rate_cap(config_, initial.global_batch)),
      rate_factor_(rate_factor.value_or(initial_rate_factor(config_, initial.global_batch))),
      entered_({initial}),
      outcomes_(config_),
      calibrations_(config_) {
  list_candidates();
  const PolicyKind policy = config_.adapt.policy;
  if (policy == PolicyKind::steps && !config_.adapt.advise) check_schedule_fits();
  if (policy_ && candidates_.size() < 2 && !job_->may_lack_choice() && !traits_of(policy).may_lack_choice) {
    throw UserError(
        concat("adapt.policy \"", to_string(policy), "\" has nothing to choose among: ",
               "of the configurations that [adapt] allows, only the one that the run begins in is feasible",
               table_.too_large > 0 ? concat(" (", table_.too_large, " need more memory than the device has)") : "",
               "; allow more batches (adapt.global_batches) or set adapt.policy to \"static\""));
  }
}

bool Controller::learns_from_steps(const AnyConfig& config) {
  return job_of(config).adapt.policy != PolicyKind::none || predicts_steps(config);
}

// Refuses a schedule before training if one of its batches needs more memory than there is.
void Controller::check_schedule_fits() {
  for (const auto& [begin, batch] : parse_step_schedule(config_.adapt.schedule, config_.train.sequence_length)) {
    Configuration piece = configuration_of(config_);
    piece.global_batch = batch;
    if (const auto reason = job_->out_of_memory_reason(piece)) {
      throw UserError(concat("adapt.schedule has batch ", batch, ", and ", to_string(piece), " ", *reason));
    }
  }
}

void Controller::mark_resumed() {
  if (learner_ && job_->warms_up()) learner_->begin_warm_up();
}

std::vector<std::string> Controller::save_state() {
  StateValues values;
  visit_state(values);
  inputs_.restart_from(inputs_.value());
  return values.written();
}

void Controller::restore_state(const std::vector<std::string>& state) {
  StateValues values(state);
  visit_state(values);
  values.require_end();
}

// Lists all members except those that follow from the settings or from other members.
void Controller::visit_state(StateValues& values) {
  uint64_t hash = inputs_.value();
  values(hash, current_, rate_cap_, rate_factor_, infeasible_, memory_refusal_, entered_, latest_, is_measured_,
         decided_at_, switched_at_, decided_at_share_, switched_at_seconds_, steps_in_configuration_, updates_,
         clipped_updates_, pinned_, under_way_, promise_, pauses_, outcomes_);
  values.require(policy_ ? static_cast<int64_t>(config_.adapt.policy) : -1);
  if (policy_) policy_->visit_state(values);
  values.require(learner_.has_value() ? 1 : 0);
  if (learner_) values(*learner_);
  values(calibrations_);
  std::optional<int64_t> corrected_at = corrected_at_;
  values(corrected_at, corrected_open_steps_);
  bool is_regrouped = regrouped_with_.has_value();
  values(is_regrouped);
  if (is_regrouped) {
    if (!regrouped_with_) regrouped_with_.emplace();
    values.visit_knowledge(*regrouped_with_, job_->prior());
  }
  if (!values.is_reading()) return;
  follow_calibrations();
  if (is_regrouped) table_ = job_->table(*regrouped_with_, current_.strategy.world_size());
  list_candidates();
  if (learner_ && corrected_at == learner_->revision()) correct_candidates(corrected_open_steps_);
  corrected_at_ = corrected_at;
  inputs_.restart_from(hash);
}

Reaction Controller::observe(const Observation& observation) {
  COPUS_CHECK(observation.step > latest_.step, observation.step, " after ", latest_.step);
  latest_ = as_logged(observation);
  decided_at_share_.see(latest_.share_done);
  inputs_.add(latest_);
  updates_ += latest_.clipped.has_value();
  clipped_updates_ += latest_.clipped.value_or(false);
  const bool is_finite = job_->is_finite(latest_);
  if (is_finite && learner_) {
    learner_->add(latest_.step_seconds);
    ++steps_in_configuration_;
    is_measured_ |= learner_->counted_steps() > 0;
    outcomes_.observe(latest_, learner_->counted_steps() > 0);
  }
  if (policy_) policy_->observe(latest_, current_);
  Reaction reaction;
  if (is_decision_due(is_finite)) {
    reaction.decision = decide();
    reaction.intent = under_way_;
    if (!config_.adapt.advise) reaction.rate_factor = rate_factor_;
  }
  if (outcomes_.is_due()) reaction.realised = outcomes_.take(learner_->knowledge());
  return reaction;
}

// Decisions are due whenever adapt.interval_samples have passed, and after the first and the third counted step in a
// configuration. Steps that are not finite are not counted. A resumed run warms up again, but keeps the count of steps,
// so that it decides at the same steps as without the interruption.
bool Controller::is_decision_due(bool has_counted) const {
  if (!policy_ || under_way_ || pinned_) return false;
  const bool interval_has_passed = latest_.consumed_samples - decided_at_ >= config_.adapt.interval_samples ||
                                   decided_at_share_.has_passed(longest_interval, latest_.share_done);
  const int64_t counted = steps_in_configuration_ - StepTimeLearner::warm_up_steps;
  const bool first_look = has_counted && (counted == 1 || counted == 3);
  return policy_->is_due(latest_, current_) || ((interval_has_passed || first_look) && is_measured_);
}

Decision Controller::decide() {
  decided_at_ = latest_.consumed_samples;
  decided_at_share_ = RunMark(latest_.share_done);
  correct_candidates();
  rate_cap_ = follow_critical_batch(config_, current_.global_batch, rate_cap_, policy_->belief(latest_),
                                    static_cast<double>(latest_.consumed_samples));
  const Situation situation{latest_,
                            current_,
                            candidates_,
                            latest_.consumed_samples - switched_at_,
                            latest_.elapsed_seconds - switched_at_seconds_,
                            rate_cap_,
                            holds_batch(),
                            [this](const ParallelStrategy& target) { return pause_seconds(target); }};
  inputs_.add(situation.samples_since_switch);

  Decision decision;
  decision.step = latest_.step;
  decision.consumed_samples = latest_.consumed_samples;
  decision.policy = to_string(config_.adapt.policy);
  decision.current = current_;
  describe_schedule(decision);
  decision.noise_scale = latest_.noise_scale;
  decision.noise_scale_low = latest_.noise_scale_low;
  decision.noise_scale_high = latest_.noise_scale_high;
  if (latest_.noise_scale) {
    decision.critical_batch = critical_batch_at(*latest_.noise_scale);
  }
  decision.choice = policy_->choose(situation);
  if (situation.holds_batch) hold_batch(decision.choice);
  decision.inputs_hash = inputs_.value();

  const Choice& choice = decision.choice;
  rate_factor_ = choice.rate_factor.value_or(rate_factor_in(current_));
  decision.rate_factor = rate_factor_;
  if (!choice.rate_factor) decision.rate_cap = rate_cap_;
  if (choice.target) decision.target_rate_factor = choice.target_rate_factor.value_or(rate_factor_in(*choice.target));
  decision.moves = choice.target && *choice.target != current_ && !config_.adapt.advise;
  if (decision.moves) {
    decision.commit_after_step = std::max(first_boundary(*choice.target), choice.commit_after_step.value_or(0));
    begin_switch({*choice.target, decision.commit_after_step, *decision.target_rate_factor, decision.inputs_hash},
                 choice.predicted_gain);
  }
  return decision;
}

// Fills in the state of the learning rate's schedule, and restarts the count of clipped updates.
void Controller::describe_schedule(Decision& decision) {
  if (latest_.phase) {
    decision.learning_rate = latest_.learning_rate;
    decision.phase = latest_.phase;
  }
  const auto clipped = static_cast<double>(std::exchange(clipped_updates_, 0));
  const auto updates = static_cast<double>(std::exchange(updates_, 0));
  if (updates > 0) decision.clipped_share = clipped / updates;
}

// Returns whether this phase of the learning rate's schedule forbids changes of the batch. Layouts may change, because
// they do not change the losses. The rate still follows the critical batch.
bool Controller::holds_batch() const {
  const std::vector<SchedulePhase>& phases = config_.adapt.hold_in;
  return latest_.phase && !traits_of(config_.adapt.policy).follows_schedule &&
         std::find(phases.begin(), phases.end(), *latest_.phase) != phases.end();
}

// Turns a choice of another batch into a hold, for policies that ignore the phases.
void Controller::hold_batch(Choice& choice) const {
  if (!choice.target || choice.target->global_batch == current_.global_batch) return;
  choice.reason = concat("holds: ", why_batch_is_held(*latest_.phase), "; otherwise to ", to_string(*choice.target),
                         ": ", choice.reason);
  choice.target.reset();
  choice.target_rate_factor.reset();
}

// Lists the configurations that can be chosen from the current one. Their step times are not corrected by measurements
// yet; this happens when a decision needs them.
void Controller::list_candidates() {
  if (!policy_ || !learner_) return;
  const Corrected step = learner_->expected();
  candidates_ = candidates_of(
      table_, {current_, step.seconds, step.relative_deviation, 0, false, learner_->predict(current_)}, config_);
  std::erase_if(candidates_, [this](const Candidate& candidate) {
    return candidate.configuration != current_ && why_refused(candidate.configuration);
  });
  corrected_at_.reset();
  for (const Candidate& candidate : candidates_) inputs_.add(candidate.configuration);
}

// Corrects the candidates' step times by what was learned, unless nothing was learned since the last time.
void Controller::correct_candidates() {
  if (!learner_ || corrected_at_ == learner_->revision()) return;
  correct_candidates(learner_->open_steps());
}

// Corrects the candidates' step times as if only the first `open_steps` of the learner's open steps had run.
void Controller::correct_candidates(int64_t open_steps) {
  corrected_at_ = learner_->revision();
  corrected_open_steps_ = open_steps;
  const Knowledge knowledge = learner_->knowledge(open_steps);
  for (Candidate& candidate : candidates_) {
    const Corrected step = knowledge.correct(candidate.configuration, candidate.predicted);
    candidate.step_seconds = step.seconds;
    candidate.relative_deviation = step.relative_deviation;
    candidate.is_layout_measured = knowledge.knows_layout(candidate.configuration);
    candidate.measured_steps = candidate.is_layout_measured ? knowledge.measured_steps(candidate.configuration) : 0;
    inputs_.add(step.seconds);
    inputs_.add(step.relative_deviation);
  }
}

void Controller::begin_switch(const SwitchIntent& intent, double predicted_gain) {
  under_way_ = intent;
  if (!learner_) return;  // there is no prediction
  const Knowledge knowledge = learner_->knowledge();
  promise_ = {.switched = {.decision_step = latest_.step,
                           .from = current_,
                           .to = intent.configuration,
                           .predicted_step_seconds = step_in(intent.configuration, knowledge).seconds,
                           .predicted_gain = predicted_gain},
              .from_step_seconds = step_in(current_, knowledge).seconds,
              .from_rate_factor = rate_factor_,
              .to_rate_factor = intent.rate_factor};
}

// Returns the first step boundary at which all ranks can be ready for `target`. If the run has just switched at the
// current boundary, the result is one step later. Otherwise the policy "script" could not repeat the run, because after
// a switch it is asked again only after another step.
int64_t Controller::first_boundary(const Configuration& target) const {
  const bool has_just_moved = switched_at_ == latest_.consumed_samples;
  return latest_.step + (has_just_moved ? 2 : 1) + (is_relayout(current_, target) ? lead_steps : 0);
}

// The learning rate's factor in a configuration by [optimizer], at the cap of the latest decision.
double Controller::rate_factor_in(const Configuration& configuration) const {
  return copus::rate_factor(rate_rule_of(config_), static_cast<double>(configuration.global_batch), rate_cap_);
}

double Controller::critical_batch_at(double noise_scale) const {
  return BatchWorth(config_).critical_batch(noise_scale, static_cast<double>(latest_.consumed_samples));
}

// Predicts a pause as the planned time plus a constant overhead for the ranks' agreement and for allocations. If
// earlier re-layouts took less time than planned, multiplies the planned time by a factor instead.
double Controller::pause_seconds(const ParallelStrategy& target) {
  const double planned = job_->move_seconds(current_.strategy, target);
  std::vector<double> on_top, factors, of_no_state;
  for (const Pause& pause : pauses_) {
    if (pause.planned == 0) {
      of_no_state.push_back(pause.seconds);
    } else {
      on_top.push_back(pause.seconds - pause.planned);
      factors.push_back(pause.seconds / pause.planned);
    }
  }
  if (planned == 0) return of_no_state.empty() ? 0 : quantile(of_no_state, 0.5);
  if (on_top.empty()) return planned;
  const double excess = quantile(on_top, 0.5);
  return excess > 0 ? planned + excess : planned * std::min(1.0, quantile(factors, 0.5));
}

Corrected Controller::step_in(const Configuration& configuration, const Knowledge& knowledge) const {
  return knowledge.correct(configuration, learner_->predict(configuration));
}

void Controller::report(const SwitchReport& report) {
  const bool is_own = under_way_ && under_way_->configuration == report.to;
  COPUS_CHECK(is_own || config_.adapt.advise, "nobody wanted this switch");
  under_way_.reset();
  inputs_.add(report.after_step);
  inputs_.add(int64_t{static_cast<int>(report.outcome)});
  inputs_.add(report.to);
  inputs_.add(report.pause_seconds);
  if (report.outcome == SwitchReport::Outcome::moved) {
    if (policy_ && is_relayout(current_, report.to)) {
      pauses_.push_back({report.pause_seconds, job_->move_seconds(current_.strategy, report.to.strategy)});
    }
    enter(report.to);
    rate_factor_ = report.rate_factor.value_or(rate_factor_in(report.to));
    switched_at_ = report.consumed_samples;
    if (is_own && learner_) outcomes_.moved(promise_, report.consumed_samples, learner_->knowledge());
  } else {
    note_refusal(report);
    // A roll-back has released and allocated memory again, so the next steps are slower and warm up once more.
    if (learner_ && report.outcome == SwitchReport::Outcome::rolled_back) learner_->begin_warm_up();
  }
  if (report.outcome != SwitchReport::Outcome::vetoed) restart_counting(report.pause_seconds);
  list_candidates();
}

// The pause after a change of ranks does not predict the pauses of later re-layouts, because it includes the detection
// of the change and the start of processes.
void Controller::ranks_changed(const RanksChanged& change) {
  COPUS_CHECK(change.to.global_batch == change.from.global_batch, to_string(change.from), " to ", to_string(change.to));
  COPUS_CHECK(change.ranks >= change.to.strategy.world_size(), change.ranks, " ranks for ", to_string(change.to));
  // Ranks may have failed after they made the switch under way and before it was reported.
  if (under_way_ && under_way_->configuration == change.from) rate_factor_ = under_way_->rate_factor;
  under_way_.reset();
  inputs_.add(change.after_step);
  inputs_.add(change.ranks);
  inputs_.add(change.to);
  inputs_.add(change.pause_seconds);
  if (policy_ && learner_ && change.to.strategy.world_size() != current_.strategy.world_size()) {
    regrouped_with_ = knowledge();
    table_ = job_->table(*regrouped_with_, change.to.strategy.world_size());
  }
  infeasible_.clear();  // what failed on the old ranks may work on the new ones
  enter(change.to);
  switched_at_ = latest_.consumed_samples;
  outcomes_.interrupted(knowledge());
  restart_counting(change.pause_seconds);
  list_candidates();
}

void Controller::enter(const Configuration& configuration) {
  current_ = configuration;
  entered_.insert(configuration);
  if (learner_) learner_->change_configuration(configuration);
}

// Restarts the count of steps in the current configuration, after a pause.
void Controller::restart_counting(double pause_seconds) {
  is_measured_ = false;
  steps_in_configuration_ = 0;
  switched_at_seconds_ = latest_.elapsed_seconds + pause_seconds;
}

void Controller::note_refusal(const SwitchReport& report) {
  infeasible_.emplace(report.to, report.reason);
  if (!report.is_lack_of_memory) return;
  inputs_.add(int64_t{*report.is_lack_of_memory});
  if (!*report.is_lack_of_memory) return;
  const double bytes = job_->memory_bytes(report.to);
  if (!memory_refusal_ || bytes < memory_refusal_->bytes) memory_refusal_ = {report.to, bytes, report.reason};
}

// Explains why earlier switches rule a configuration out; empty if they do not. A configuration that has run is known
// to fit. Predicted bytes may be wrong, but they order configurations about right. So once a configuration did not fit,
// configurations with at least its predicted bytes are not tried.
std::optional<std::string> Controller::why_refused(const Configuration& target) {
  if (const auto refused = infeasible_.find(target); refused != infeasible_.end()) {
    return concat("it was tried and is not possible: ", refused->second);
  }
  if (!memory_refusal_ || entered_.contains(target)) return std::nullopt;
  const double bytes = job_->memory_bytes(target);
  if (bytes < memory_refusal_->bytes) return std::nullopt;
  return concat(to_string(target), " is predicted to need ", format_bytes(bytes), ", no less than the ",
                format_bytes(memory_refusal_->bytes), " of ", to_string(memory_refusal_->configuration),
                ", for which there was not enough memory: ", memory_refusal_->reason);
}

std::optional<CalibrationRequest> Controller::calibration_due() const {
  if (!learner_ || !is_measured_ || under_way_ || pinned_) return std::nullopt;
  const bool has_batches = std::ranges::any_of(candidates_, [this](const Candidate& candidate) {
    return candidate.configuration.global_batch != current_.global_batch;
  });
  if (!has_batches) return std::nullopt;
  return calibrations_.due(latest_, current_.global_batch, learner_->expected().seconds);
}

void Controller::calibrated(const RunCalibration& calibration) {
  calibrations_.add(calibration);
  inputs_.add(calibration.step);
  inputs_.add(calibration.seconds);
  inputs_.add(calibration.critical_batch.value_or(0));
  inputs_.add(calibration.deviation.value_or(0));
  follow_calibrations();
}

void Controller::follow_calibrations() {
  if (!calibrations_.are_allowed()) return;
  config_.noise_scale.critical_batches = calibrations_.critical_batches();
  policy_->learn(calibrations_.critical_batches());
  outcomes_.learn(calibrations_.critical_batches());
}

std::optional<SwitchIntent> Controller::command(const Command& command) {
  std::optional<SwitchIntent> intent;
  switch (command.kind) {
    case Command::Kind::pin:
      pinned_ = true;
      break;
    case Command::Kind::unpin:
      pinned_ = false;
      break;
    case Command::Kind::force:
      if (!command.target) throw UserError("force needs the configuration to move to");
      intent = force(*command.target);
      break;
    case Command::Kind::pause:
    case Command::Kind::resume:
      break;  // no step happens during a pause
  }
  inputs_.add(int64_t{static_cast<int>(command.kind)});
  return intent;
}

std::optional<SwitchIntent> Controller::force(const Configuration& target) {
  check_feasible(target);
  if (under_way_) {
    throw UserError(concat("a switch is under way, after step ", under_way_->commit_after_step, ": try again then"));
  }
  pinned_ = true;
  inputs_.add(target);
  if (target == current_) return std::nullopt;
  const bool keeps_batch = target.global_batch == current_.global_batch;
  // Without a policy, the cap follows the critical batch only at a change of the batch. It jumps to its new value at
  // once, because the rate changes with the batch anyway.
  if (!policy_ && !keeps_batch) {
    rate_cap_ =
        rate_cap_by_noise(config_, rate_cap_, believed_noise(latest_), static_cast<double>(latest_.consumed_samples));
  }
  const double rate = keeps_batch ? rate_factor_ : rate_factor_in(target);
  begin_switch({target, first_boundary(target), rate, inputs_.value()}, gain_of(target, rate));
  return under_way_;
}

// The relative gain of Goodput in another configuration and at its rate; NaN if step times or phi are unknown.
double Controller::gain_of(const Configuration& target, double target_rate) const {
  if (!learner_ || !latest_.noise_scale) return unknown;
  const Knowledge knowledge = learner_->knowledge();
  const double critical = critical_batch_at(*latest_.noise_scale);
  const auto worth = [&](const Configuration& configuration, double rate) {
    return BatchWorth(config_).goodput(configuration.global_batch, step_in(configuration, knowledge).seconds, critical,
                                       rate);
  };
  return worth(target, target_rate) / worth(current_, rate_factor_) - 1;
}

void Controller::check_feasible(const Configuration& target) {
  if (target.strategy.world_size() != current_.strategy.world_size()) {
    const int64_t ranks = current_.strategy.world_size();
    throw UserError(concat(to_string(target), " needs ", target.strategy.world_size(), " ranks, and the job trains on ",
                           ranks, ": give a layout whose d x t x p is ", ranks,
                           ", or let the run end and go on with other ranks by --resume"));
  }
  if (const auto reason = job_->infeasible_reason(target)) throw UserError(*reason);
  if (const auto reason = why_refused(target)) throw UserError(*reason);
  if (const auto reason = job_->out_of_memory_reason(target)) {
    throw UserError(concat(to_string(target), " ", *reason));
  }
}

}  // namespace copus
