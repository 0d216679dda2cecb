#include "copus/orchestrator/controller.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/quantile.h"
#include "copus/orchestrator/candidates.h"
#include "copus/orchestrator/input_hash.h"
#include "copus/orchestrator/relayout_estimate.h"
#include "copus/orchestrator/step_time_learner.h"
#include "copus/orchestrator/switch_outcomes.h"
#include "copus/performance/table.h"
#include "copus/statistics/efficiency.h"

namespace copus {

namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

// As it reads back from a log, which keeps what is not finite as null.
Observation as_logged(Observation observation) {
  for (double* value : {&observation.loss, &observation.grad_norm}) {
    if (!std::isfinite(*value)) *value = unknown;
  }
  return observation;
}

bool is_relayout(const Configuration& from, const Configuration& to) { return from.strategy != to.strategy; }

PerformanceTable table_of(const RunConfig& config, const Knowledge& knowledge) {
  if (!is_speed_known(config.cluster)) {
    throw UserError(concat("adapt.policy \"", to_string(config.adapt.policy), "\" compares configurations by their ",
                           "step times, and nothing says how fast the cluster computes: describe its device in ",
                           "[cluster] (matmul_teraflops, as `copus profile` measures it), or set adapt.policy to ",
                           "\"none\""));
  }
  return make_table(config.model, config.train.sequence_length, cluster_as_timed(config.cluster),
                    training_system_of(config), search_space_of(config), knowledge);
}

// With the other exponent of Goodput, for policies that have one.
std::unique_ptr<Policy> other_alpha_policy(RunConfig config, const std::string& file) {
  if (config.adapt.policy != PolicyKind::copus && config.adapt.policy != PolicyKind::oracle) return nullptr;
  config.adapt.alpha = config.adapt.alpha > 0 ? 0 : 0.5;
  return make_policy(config, file);
}

}  // namespace

struct Controller::State {
  State(RunConfig the_config, const Configuration& initial, Knowledge knowledge, const std::string& file)
      : config(std::move(the_config)),
        policy(make_policy(config, file)),
        other_policy(other_alpha_policy(config, file)),
        table(table_of(config, knowledge)),
        learner(config, initial, std::move(knowledge)),
        current(initial),
        outcomes(config) {}

  RunConfig config;
  std::unique_ptr<Policy> policy;
  std::unique_ptr<Policy> other_policy;  // null where there is no other exponent
  PerformanceTable table;                // as predicted; candidates are corrected
  StepTimeLearner learner;
  Configuration current;
  std::vector<Candidate> candidates;
  std::vector<StepTimeParts> parts;                 // of the candidates, as predicted
  std::optional<int64_t> corrected_at;              // the learner's revision that the candidates are corrected by
  std::map<Configuration, std::string> infeasible;  // with the reason
  Observation latest;
  int64_t decided_at = 0;   // consumed samples
  int64_t switched_at = 0;  // likewise
  bool pinned = false;
  std::optional<SwitchIntent> announced;  // and not reported yet
  bool is_announcement_taken = false;
  SwitchOutcomes::Promise promise;  // of the announced switch
  std::vector<double> pauses;       // of re-layouts, seconds
  double estimated_pause = 0;
  InputHash inputs;
  SwitchOutcomes outcomes;

  Corrected step_in(const Configuration& configuration, const Knowledge& knowledge) const {
    return knowledge.correct(configuration, learner.predict(configuration));
  }

  // What can be chosen from the current configuration; corrected when it is asked for.
  void list_candidates() {
    const Corrected step = learner.expected();
    candidates = candidates_of(table, {current, step.seconds, step.relative_deviation, 0}, config);
    std::erase_if(candidates, [this](const Candidate& candidate) {
      return candidate.configuration != current && infeasible.contains(candidate.configuration);
    });
    std::map<Configuration, const StepTimeParts*> predicted;
    for (const TableCell& cell : table.cells) predicted.emplace(cell.configuration, &cell.parts);
    parts.clear();
    corrected_at.reset();
    for (const Candidate& candidate : candidates) {
      const auto cell = predicted.find(candidate.configuration);
      parts.push_back(cell != predicted.end() ? *cell->second : learner.predict(candidate.configuration));
      inputs.add(candidate.configuration);
    }
  }

  // Between two measurements nothing is known better: then the candidates stay as they are.
  void correct_candidates() {
    if (corrected_at == learner.revision()) return;
    corrected_at = learner.revision();
    const Knowledge knowledge = learner.knowledge();
    for (size_t i = 0; i < candidates.size(); ++i) {
      Candidate& candidate = candidates[i];
      const Corrected step = knowledge.correct(candidate.configuration, parts[i]);
      candidate.step_seconds = step.seconds;
      candidate.relative_deviation = step.relative_deviation;
      candidate.measured_steps = knowledge.measured_steps(candidate.configuration);
      inputs.add(step.seconds);
      inputs.add(step.relative_deviation);
    }
  }

  double relayout_seconds() const { return pauses.empty() ? estimated_pause : quantile(pauses, 0.5); }

  // A person may want the next switch at the very boundary of the latest one. A script is not asked again before
  // another step has run, and must be able to repeat it.
  int64_t first_boundary(const Configuration& target) const {
    const bool has_just_moved = switched_at == latest.consumed_samples;
    return latest.step + (has_just_moved ? 2 : 1) + (is_relayout(current, target) ? lead_steps : 0);
  }

  double known_critical_batch() const {
    return latest.noise_scale ? critical_batch(config.noise_scale.calibration, *latest.noise_scale) : 0;
  }

  void announce(const SwitchIntent& intent, double predicted_gain, const Knowledge& knowledge) {
    announced = intent;
    is_announcement_taken = false;
    promise = {.decision_step = latest.step,
               .from = current,
               .to = intent.configuration,
               .from_step_seconds = step_in(current, knowledge).seconds,
               .to_step_seconds = step_in(intent.configuration, knowledge).seconds,
               .gain = predicted_gain};
  }

  Decision decide();
  void force(const Configuration& target);
  void check_feasible(const Configuration& target) const;
};

Controller::Controller(const RunConfig& config, const Configuration& initial, Knowledge knowledge,
                       const std::string& file)
    : state_(std::make_unique<State>(config, initial, std::move(knowledge), file)) {
  state_->estimated_pause = estimated_relayout_seconds(config);
  state_->list_candidates();
  const PolicyKind policy = config.adapt.policy;
  if (state_->candidates.size() < 2 && policy != PolicyKind::fixed && policy != PolicyKind::script) {
    throw UserError(concat("adapt.policy \"", to_string(policy), "\" has nothing to choose among: ",
                           "of the configurations that [adapt] allows, only the one that the run begins in is feasible",
                           state_->table.too_large > 0
                               ? concat(" (", state_->table.too_large, " need more memory than the device has)")
                               : "",
                           "; allow more batches (adapt.global_batches) or set adapt.policy to \"static\""));
  }
}

Controller::~Controller() = default;
Controller::Controller(Controller&&) noexcept = default;
Controller& Controller::operator=(Controller&&) noexcept = default;

void Controller::resumed() { state_->learner.resumed(); }

std::optional<Decision> Controller::observe(const Observation& observation) {
  State& state = *state_;
  COPUS_CHECK(observation.step > state.latest.step, observation.step, " after ", state.latest.step);
  state.latest = as_logged(observation);
  state.inputs.add(state.latest);
  if (std::isfinite(state.latest.loss) && std::isfinite(state.latest.grad_norm)) {
    state.learner.add(state.latest.step_seconds);
    state.outcomes.observe(state.latest, state.learner.counted_steps() > 0);
  }
  state.policy->observe(state.latest);
  if (state.other_policy) state.other_policy->observe(state.latest);
  if (state.announced || state.pinned) return std::nullopt;
  const bool interval_has_passed =
      state.latest.consumed_samples - state.decided_at >= state.config.adapt.interval_samples;
  if (!state.policy->is_due(state.latest) && (!interval_has_passed || state.learner.counted_steps() == 0)) {
    return std::nullopt;
  }
  return state.decide();
}

Decision Controller::State::decide() {
  decided_at = latest.consumed_samples;
  correct_candidates();
  const Situation situation{latest, current, candidates, latest.consumed_samples - switched_at, relayout_seconds()};
  inputs.add(situation.samples_since_switch);
  inputs.add(situation.relayout_seconds);

  Decision decision;
  decision.step = latest.step;
  decision.consumed_samples = latest.consumed_samples;
  decision.policy = to_string(config.adapt.policy);
  decision.current = current;
  decision.noise_scale = latest.noise_scale;
  decision.noise_scale_low = latest.noise_scale_low;
  decision.noise_scale_high = latest.noise_scale_high;
  if (latest.noise_scale) decision.critical_batch = known_critical_batch();
  decision.choice = policy->choose(situation);
  if (other_policy) decision.other_alpha_choice = other_policy->choose(situation).target;
  decision.inputs_hash = inputs.value();

  const Choice& choice = decision.choice;
  decision.moves = choice.target && *choice.target != current && !config.adapt.advise;
  if (decision.moves) {
    decision.commit_after_step = std::max(first_boundary(*choice.target), choice.commit_after_step.value_or(0));
    announce({*choice.target, decision.commit_after_step, choice.critical_batch, decision.inputs_hash},
             choice.predicted_gain, learner.knowledge());
  }
  return decision;
}

std::optional<SwitchIntent> Controller::take_intent() {
  if (!state_->announced || std::exchange(state_->is_announcement_taken, true)) return std::nullopt;
  return state_->announced;
}

void Controller::report(const SwitchReport& report) {
  State& state = *state_;
  const bool was_announced = state.announced && state.announced->configuration == report.to;
  COPUS_CHECK(was_announced || state.config.adapt.advise, "nobody announced this switch");
  state.announced.reset();
  state.inputs.add(report.after_step);
  state.inputs.add(int64_t{static_cast<int>(report.outcome)});
  state.inputs.add(report.to);
  state.inputs.add(report.pause_seconds);
  if (report.outcome == SwitchReport::Outcome::moved) {
    if (is_relayout(state.current, report.to)) state.pauses.push_back(report.pause_seconds);
    state.current = report.to;
    state.switched_at = report.consumed_samples;
    state.learner.change_configuration(report.to);
    if (was_announced) state.outcomes.moved(state.promise, report.consumed_samples, state.learner.knowledge());
  } else {
    state.infeasible.emplace(report.to, report.reason);
    // Memory was given back and taken again.
    if (report.outcome == SwitchReport::Outcome::rolled_back) state.learner.resumed();
  }
  state.list_candidates();
}

std::vector<Realised> Controller::take_realised() {
  if (!state_->outcomes.is_due()) return {};
  return state_->outcomes.take(state_->learner.knowledge());
}

void Controller::command(const Command& command) {
  State& state = *state_;
  switch (command.kind) {
    case Command::Kind::pin:
      state.pinned = true;
      break;
    case Command::Kind::unpin:
      state.pinned = false;
      break;
    case Command::Kind::force:
      if (!command.target) throw UserError("force needs the configuration to move to");
      state.force(*command.target);
      break;
    case Command::Kind::pause:
    case Command::Kind::resume:
      break;  // no step happens in between
  }
  state.inputs.add(int64_t{static_cast<int>(command.kind)});
}

void Controller::State::force(const Configuration& target) {
  check_feasible(target);
  if (announced) {
    throw UserError(concat("a switch is under way, after step ", announced->commit_after_step, ": try again then"));
  }
  pinned = true;
  inputs.add(target);
  if (target == current) return;
  const Knowledge knowledge = learner.knowledge();
  double gain = unknown;
  if (latest.noise_scale) {
    const auto worth = [&](const Configuration& configuration) {
      const auto batch = static_cast<double>(configuration.global_batch);
      return goodput(batch / step_in(configuration, knowledge).seconds, batch, known_critical_batch(),
                     static_cast<double>(config.train.global_batch), config.adapt.alpha);
    };
    gain = worth(target) / worth(current) - 1;
  }
  announce({target, first_boundary(target), known_critical_batch(), inputs.value()}, gain, knowledge);
}

void Controller::State::check_feasible(const Configuration& target) const {
  if (target.strategy.world_size() != current.strategy.world_size()) {
    throw UserError(concat(to_string(target), " needs ", target.strategy.world_size(), " ranks, and the job has ",
                           current.strategy.world_size()));
  }
  if (const auto reason = infeasible_reason(config.model, target, config.train.sequence_length)) {
    throw UserError(*reason);
  }
  if (const auto refused = infeasible.find(target); refused != infeasible.end()) {
    throw UserError(concat("it was tried and is not possible: ", refused->second));
  }
  const MemoryPrediction memory =
      MemoryModel(config.model, config.train.sequence_length, training_system_of(config)).predict(target);
  if (const auto reason = out_of_memory_reason(memory, config.cluster.description.device.memory_bytes)) {
    throw UserError(concat(to_string(target), " ", *reason));
  }
}

const std::optional<SwitchIntent>& Controller::announced() const { return state_->announced; }
bool Controller::pinned() const { return state_->pinned; }
const Configuration& Controller::current() const { return state_->current; }
Knowledge Controller::knowledge() const { return state_->learner.knowledge(); }
Corrected Controller::expected_step() const { return state_->learner.expected(); }

}  // namespace copus
