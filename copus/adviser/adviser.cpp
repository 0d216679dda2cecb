#include "copus/adviser/adviser.h"

#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/description/configuration_fields.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/performance/measured/accumulation_time.h"
#include "copus/report/logs/decision_replay.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

// Half the width of a 95 % interval, in standard deviations.
constexpr double deviations_of_interval = 1.96;

// Returns what the measurements in the first batch tell about the step time.
Knowledge first_knowledge(const Configuration& configuration, const Measurement& measurement) {
  const AccumulationTime guess = AccumulationTime::guess(configuration, measurement.median_seconds);
  return observe(Knowledge(), configuration, guess.predict(configuration), measurement);
}

// Sets the ends of the gain's interval. The uncertainties of the noise scale and of the two step times are independent.
void set_interval(Advice& advice, const RankedCandidate& target, double step_time_deviation) {
  const double gain = std::log1p(advice.gain);
  const double lowest = std::log1p(std::min({advice.gain, target.gain_low, target.gain_high}));
  const double highest = std::log1p(std::max({advice.gain, target.gain_low, target.gain_high}));
  const double by_step_time = deviations_of_interval * step_time_deviation;
  advice.gain_low = std::expm1(gain - std::hypot(gain - lowest, by_step_time));
  advice.gain_high = std::expm1(gain + std::hypot(highest - gain, by_step_time));
}

}  // namespace

Adviser::Adviser(const AdviserSettings& settings, const Start& start)
    : config_(config_of(settings)), file_(policy_file_text(config_)), directory_(start.directory) {
  state_.configuration = configuration_of(config_);
  check_choice();
  const bool goes_on = start.after_step || start.state;
  if (goes_on) {
    go_on(start);
  } else if (directory_ && fs::exists(*directory_ / "run.jsonl")) {
    throw UserError(concat(directory_->string(), ": there is a log of a job already. To go on with that job, give the ",
                           "step that it goes on after, or its adviser's state; else choose another directory"));
  }
  open_logs(goes_on);
}

// Throws errors now that a controller would otherwise throw only later, once step times are known.
void Adviser::check_choice() const {
  const Measurement any{.steps = 1, .median_seconds = 1};
  Controller(config_, state_.configuration, first_knowledge(state_.configuration, any), file_);
}

void Adviser::go_on(const Start& start) {
  std::optional<KeptState> kept;
  if (start.state) kept = kept_state_from_text(*start.state);
  const int64_t after_step = kept ? kept->state.step : *start.after_step;
  if (start.after_step && after_step != *start.after_step) {
    throw UserError(concat("the job is to go on after step ", *start.after_step,
                           ", and the adviser's state is of step ", after_step, ": give one of the two"));
  }
  if (after_step < 0) throw UserError(concat("a job cannot go on after step ", after_step));
  if (after_step == 0) return;
  const fs::path log = directory_.value_or("") / "run.jsonl";
  const std::vector<StepRecord> records =
      directory_ && fs::exists(log) ? read_run_log(log, after_step) : std::vector<StepRecord>();
  const int64_t logged = records.empty() ? 0 : records.back().step;
  if (logged == after_step) {
    if (kept && records.back().consumed_samples != kept->state.consumed_samples) {
      throw UserError(concat(log.string(), ": had consumed ", records.back().consumed_samples, " samples after step ",
                             after_step, ", and the adviser's state ", kept->state.consumed_samples,
                             ": they are of two jobs; choose another directory"));
    }
    follow_logs(records);
    if (controller_) return;
  } else if (kept) {
    const Configuration own = state_.configuration;
    state_ = kept->state;
    const int64_t batch = state_.configuration.global_batch;
    state_.configuration = is_whole(batch) ? in_batch(batch) : own;
  } else {
    throw UserError(concat(log.string(), logged == 0 ? " is not there" : concat(" ends after step ", logged),
                           ", and the job is to go on after step ", after_step,
                           ": give the adviser's state of that step as well"));
  }
  if (kept && kept->begin) go_on_with(kept->begin->knowledge, kept->begin->rate_factor);
}

// Restores the counters, and the controller if there was one.
void Adviser::follow_logs(const std::vector<StepRecord>& records) {
  for (const StepRecord& record : records) state_.repeat(config_, record);
  const std::vector<DecisionEvent> events = read_decision_log(*directory_ / "decisions.jsonl", state_.step);
  auto replayed = bring_up_to_date(config_, records, events, state_.step);
  if (!replayed) return;
  const Configuration current = replayed->controller.current();
  if (!replayed->difference && is_own_layout(current)) {
    state_.configuration = current;
    controller_.emplace(std::move(replayed->controller));
    controller_->mark_resumed();
    first_event_ = ControllerResumed{state_.step};
    return;
  }
  notes_.push_back(concat("the adviser decides afresh: ", replayed->difference
                                                              ? describe(*replayed->difference)
                                                              : concat("the job was in ", to_string(current))));
  go_on_with(replayed->controller.knowledge(), std::nullopt);
}

// Makes a new controller if the step times of this layout are known.
void Adviser::go_on_with(const Knowledge& known, std::optional<double> rate_factor) {
  std::map<Configuration, MeasuredCell> cells = known.cells();
  std::erase_if(cells, [this](const auto& cell) { return !is_own_layout(cell.first); });
  if (cells.empty()) return;
  const Knowledge own(std::move(cells));
  controller_.emplace(config_, state_.configuration, own, file_, rate_factor);
  first_event_ = begin_event(own, rate_factor);
}

// Opens the logs. The log of steps comes first, because its lock keeps other writers out.
void Adviser::open_logs(bool goes_on) {
  if (!directory_) return;
  const std::optional<int64_t> after_step = goes_on ? std::optional(state_.step) : std::nullopt;
  create_directories_durably(*directory_);
  run_log_.emplace(*directory_, after_step);
  write_file_durably(*directory_ / "config.toml", to_toml(config_));
  decision_log_.emplace(*directory_, after_step);
  if (first_event_) log(*first_event_);
  if (!run_log_->missing().empty()) {
    notes_.push_back(concat("run.jsonl has no line of ", describe(run_log_->missing()),
                            ": they are missing from the log and its report"));
  }
}

void Adviser::log(const DecisionEvent& event) {
  if (decision_log_) decision_log_->append(event);
}

ControllerBegin Adviser::begin_event(const Knowledge& known, std::optional<double> rate_factor) const {
  const AdaptConfig& adapt = config_.adapt;
  return {state_.step, std::string(to_string(adapt.policy)), adapt.advise, state_.configuration, known, file_,
          rate_factor};
}

std::optional<Advice> Adviser::step(const AdvisedStep& step) {
  check(step);
  if (!is_whole(step.samples)) {
    if (!std::exchange(has_told_of_parts_, true)) {
      notes_.push_back(concat("a step of ", step.samples,
                              " samples is left out, as all such are: it is no multiple of ", least_step()));
    }
    return std::nullopt;
  }
  if (step.samples != batch()) change_batch(step.samples);
  StepRecord record = record_of(step);
  AdviserState next = state_;
  next.complete(config_, record);
  if (run_log_) run_log_->append(record);
  state_ = next;
  if (!controller_) {
    begin_once_measured(record);
    return std::nullopt;
  }
  const Reaction reaction = controller_->observe(observation_of(record));
  if (reaction.decision) log(*reaction.decision);
  return reaction.decision ? advice_of(*reaction.decision) : std::nullopt;
}

void Adviser::check(const AdvisedStep& step) const {
  if (is_closed_) throw UserError("the adviser is closed: no step can follow");
  const auto require = [](bool condition, const char* name, double value, const std::string& expected) {
    if (!condition) throw UserError(concat(name, " of a step is ", value, ", expected ", expected));
  };
  require(allowed_batches.contains(step.samples), "samples", static_cast<double>(step.samples),
          describe(allowed_batches));
  require(std::isfinite(step.seconds) && step.seconds > 0, "seconds", step.seconds, "more than 0");
  require(!(step.gradient_norm < 0), "grad_norm", step.gradient_norm, "at least 0");
  require(!step.learning_rate || *step.learning_rate >= 0, "lr", step.learning_rate.value_or(0), "at least 0");
  require(!step.loss_tokens || *step.loss_tokens >= 0, "loss_tokens", static_cast<double>(step.loss_tokens.value_or(0)),
          "at least 0");
  if (step.small_batch.has_value() != step.small_squared_norm.has_value()) {
    throw UserError("small_batch and small_squared_norm of a step are of one measurement: give both or neither");
  }
  if (!step.small_batch) return;
  require(*step.small_batch > 0 && *step.small_batch < static_cast<double>(step.samples), "small_batch",
          *step.small_batch, concat("more than 0 and fewer than the step's ", step.samples, " samples"));
  require(!(*step.small_squared_norm < 0), "small_squared_norm", *step.small_squared_norm, "at least 0");
}

// Whether the ranks can share `samples` samples in whole micro-batches.
bool Adviser::is_whole(int64_t samples) const {
  return samples > 0 && samples % (config_.train.micro_batch * config_.parallel.data_parallel) == 0;
}

std::string Adviser::least_step() const {
  return concat("the micro-batch of ", config_.train.micro_batch, " x ", config_.parallel.data_parallel,
                " data-parallel ranks");
}

bool Adviser::is_own_layout(const Configuration& configuration) const {
  return configuration.strategy == config_.parallel && configuration.micro_batch == config_.train.micro_batch;
}

Configuration Adviser::in_batch(int64_t samples) const {
  Configuration configuration = configuration_of(config_);
  configuration.global_batch = samples;
  return configuration;
}

void Adviser::change_batch(int64_t samples) {
  const Configuration from = state_.configuration, to = in_batch(samples);
  seconds_.clear();
  if (controller_) {
    const bool is_advised = advised_ && advised_->choice.target == to;
    SwitchReport report;
    report.after_step = state_.step;
    report.consumed_samples = state_.consumed_samples;
    report.from = from;
    report.to = to;
    report.rate_factor = is_advised ? advised_->target_rate_factor : std::optional(controller_->rate_factor_in(to));
    log(report);
    controller_->report(report);
  }
  advised_.reset();
  state_.configuration = to;
}

StepRecord Adviser::record_of(const AdvisedStep& step) const {
  const bool is_finite = std::isfinite(step.gradient_norm);
  StepRecord record;
  record.loss_tokens = step.loss_tokens;
  record.loss = step.loss.value_or(unknown);
  record.lr = step.learning_rate.value_or(unknown);
  record.grad_norm = step.gradient_norm;
  if (is_finite) record.clipped = is_clipped(step.gradient_norm, config_.train.clip_norm);
  record.step_seconds = step.seconds;
  if (controller_) record.predicted_step_seconds = controller_->expected_step().seconds;
  record.tokens_per_second = static_cast<double>(step.samples * config_.train.sequence_length) / step.seconds;
  record.strategy = config_.parallel;
  record.global_batch = step.samples;
  record.micro_batch = config_.train.micro_batch;
  if (is_finite && step.small_batch && std::isfinite(*step.small_squared_norm)) {
    record.small_batch = step.small_batch;
    record.small_batch_squared_norm = step.small_squared_norm;
  }
  return record;
}

// Begins the controller once the first step time is measured, by the same rule as in StepTimeLearner. Predictions for
// other batches are based on this time.
void Adviser::begin_once_measured(const StepRecord& record) {
  if (record.skipped()) return;
  seconds_.push_back(record.step_seconds);
  constexpr int64_t warm_up = StepTimeLearner::warm_up_steps;
  if (std::ssize(seconds_) < warm_up + StepTimeLearner::steps_per_measurement) return;
  const Measurement measurement = measurement_of({seconds_.begin() + warm_up, seconds_.end()});
  const Knowledge known = first_knowledge(state_.configuration, measurement);
  seconds_.clear();
  controller_.emplace(config_, state_.configuration, known, file_);
  log(begin_event(known, std::nullopt));
  log_early_reasons();
}

std::optional<Advice> Adviser::advice_of(const Decision& decision) {
  const std::optional<Configuration>& target = decision.choice.target;
  if (!target || *target == decision.current) return std::nullopt;
  advised_ = decision;
  Advice advice;
  advice.step = decision.step;
  advice.batch = target->global_batch;
  advice.micro_batches = target->num_microbatches();
  advice.learning_rate_factor = *decision.target_rate_factor;
  advice.gain = decision.choice.predicted_gain;
  for (const RankedCandidate& candidate : decision.choice.best) {
    if (candidate.configuration != *target) continue;
    const double here = controller_->expected_step().relative_deviation;
    set_interval(advice, candidate, std::hypot(here, controller_->expected_step(*target).relative_deviation));
  }
  advice.noise_scale = decision.noise_scale;
  advice.noise_scale_low = decision.noise_scale_low;
  advice.noise_scale_high = decision.noise_scale_high;
  advice.critical_batch = decision.critical_batch;
  advice.reason = decision.choice.reason;
  return advice;
}

void Adviser::forget_noise() {
  state_.noise = {};
  notes_.push_back(concat("the averages of the noise scale begin anew after step ", state_.step));
}

void Adviser::log_unmeasured(const std::string& reason) {
  if (controller_) {
    log(Unmeasured{state_.step, reason});
  } else {
    early_reasons_.push_back(reason);
  }
}

void Adviser::log_early_reasons() {
  for (const std::string& reason : std::exchange(early_reasons_, {})) log(Unmeasured{state_.step, reason});
}

std::optional<Corrected> Adviser::expected_step(int64_t samples) const {
  if (!is_whole(samples)) {
    throw UserError(concat("a step of ", samples, " samples is not possible: expected a multiple of ", least_step()));
  }
  return controller_ ? std::optional(controller_->expected_step(in_batch(samples))) : std::nullopt;
}

std::string Adviser::state() {
  if (run_log_) run_log_->sync();
  if (decision_log_) decision_log_->sync();
  KeptState kept{state_, std::nullopt};
  if (controller_) kept.begin = begin_event(controller_->knowledge(), controller_->rate_factor());
  return to_text(kept);
}

void Adviser::close() {
  log_early_reasons();
  if (run_log_) run_log_->sync();
  if (decision_log_) decision_log_->sync();
  run_log_.reset();
  decision_log_.reset();
  is_closed_ = true;
}

}  // namespace copus
