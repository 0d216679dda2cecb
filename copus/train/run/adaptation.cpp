#include "copus/train/run/adaptation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/description/configuration_text.h"
#include "copus/record/step_record.h"
#include "copus/report/logs/decision_replay.h"
#include "copus/report/logs/run_log.h"

namespace copus {

namespace {

std::string signed_percent(double share) { return format_number("%+.0f %%", 100 * share); }

std::string goodput_gain(double gain) { return concat("Goodput ", signed_percent(gain)); }

// Returns whether the run continues on another cluster, so that its earlier step times no longer apply. A new profile
// of the same cluster does not count.
bool is_on_another_cluster(const RunPlan& plan) {
  return std::any_of(plan.changes.begin(), plan.changes.end(), [](const std::string& change) {
    return change.starts_with("cluster.") && !change.starts_with("cluster.profile");
  });
}

// Returns the latest start of a controller in a log; null if there is none.
const ControllerBegin* latest_begin(const std::vector<DecisionEvent>& events) {
  const ControllerBegin* latest = nullptr;
  for (const DecisionEvent& event : events) {
    if (const auto* begin = std::get_if<ControllerBegin>(&event)) latest = begin;
  }
  return latest;
}

// Returns the step of the latest controller state after that start; the step of the start if there is no state.
int64_t latest_state_step(const std::vector<DecisionEvent>& events, const ControllerBegin& begin) {
  int64_t latest = begin.step;
  for (const DecisionEvent& event : events) {
    const auto* state = std::get_if<ControllerState>(&event);
    if (state != nullptr) latest = std::max(latest, state->step);
  }
  return latest;
}

// Returns the steps that the restored controller must observe again. If it learns from steps, these are all steps since
// its latest state or start. Otherwise they are the last step, and all steps with a logged event at their boundary.
std::vector<StepRecord> records_to_repeat(const RunPlan& plan, const std::vector<DecisionEvent>& events,
                                          int64_t after_step) {
  const std::filesystem::path log = plan.directory / "run.jsonl";
  int64_t begin = 0;
  std::vector<int64_t> steps;
  for (const DecisionEvent& event : events) {
    if (std::holds_alternative<ControllerBegin>(event) || std::holds_alternative<ControllerState>(event)) {
      begin = step_of(event);
      steps.clear();
    } else if (const int64_t step = step_of(event); step > begin && (steps.empty() || steps.back() != step)) {
      steps.push_back(step);
    }
  }
  if (after_step > begin && (steps.empty() || steps.back() != after_step)) steps.push_back(after_step);
  if (!std::filesystem::exists(log)) return {};
  if (Controller::learns_from_steps(plan.config)) return read_run_log(log, after_step, begin);
  return read_steps(log, steps);
}

// Like bring_up_to_date(). But if the log has a state that cannot be restored, returns nothing, and writes the reason
// into `note`.
std::optional<ReplayedController> brought_up_to_date(const RunConfig& config, const std::vector<StepRecord>& records,
                                                     const std::vector<DecisionEvent>& events, int64_t after_step,
                                                     std::optional<std::string>& note) {
  try {
    return bring_up_to_date(config, records, events, after_step);
  } catch (const UnusableState& error) {
    note = error.what();
    return std::nullopt;
  }
}

std::string pause_of(double seconds) {
  return seconds < 1 ? format_number("%.3g ms", 1000 * seconds) : format_number("%.3g s", seconds);
}

}  // namespace

ControllerStart start_controller(const RunPlan& plan, const TrainingState& state, const Knowledge& known) {
  const AdaptConfig& adapt = plan.config.adapt;
  const std::string policy(to_string(adapt.policy));
  const int64_t after_step = state.step;
  std::optional<std::string> note;
  if (is_on_another_cluster(plan)) {
    note = "its cluster is described otherwise than before";
  } else if (plan.resume) {
    // Log entries after this step will be cut.
    const std::vector<DecisionEvent> events = read_decisions_to_resume(plan.directory / "decisions.jsonl", after_step);
    const std::vector<StepRecord> records = records_to_repeat(plan, events, after_step);
    const ControllerBegin* before = latest_begin(events);
    if (before != nullptr && before->policy != policy) {
      note = concat("its policy was \"", before->policy, "\" until now");
    } else if (auto replayed = brought_up_to_date(plan.config, records, events, after_step, note)) {
      if (replayed->difference) {
        note = describe(*replayed->difference);
      } else if (replayed->controller.current() != plan.start) {
        note = "the run goes on in another configuration than it was in";
      } else {
        replayed->controller.mark_resumed();
        const int64_t state_step = latest_state_step(events, *before);
        if (plan.changes.empty() || state_step == before->step) {
          return {std::move(replayed->controller), ControllerResumed{after_step}, before->step, state_step,
                  std::nullopt};
        }
        // Under the changed settings earlier decisions might differ, so replays begin here.
        ControllerBegin begin{after_step,        policy,       adapt.advise,     plan.start,
                              before->knowledge, before->file, state.rate_factor};
        begin.state = replayed->controller.save_state();
        return {std::move(replayed->controller), std::move(begin), after_step, after_step, std::nullopt};
      }
    }
  }
  std::string text = policy_file_text(plan.config);
  Controller controller(plan.config, plan.start, known, text, state.rate_factor);
  if (!controller.has_policy()) note.reset();  // without a policy there are no decisions to explain
  return {std::move(controller),
          ControllerBegin{after_step, policy, adapt.advise, plan.start, known, std::move(text), state.rate_factor},
          after_step, after_step, std::move(note)};
}

Adaptation::Adaptation(const RunPlan& plan, int64_t after_step, ControllerStart start, Note note)
    : config_(plan.config),
      controller_(std::move(start.controller)),
      begin_step_(start.begin_step),
      state_step_(start.state_step),
      log_(plan.directory, plan.resume ? std::optional(after_step) : std::nullopt),
      note_(std::move(note)) {
  log_.append(start.event);
  if (start.note) note_(concat("adapting   decides afresh: ", *start.note));
}

// Logs the controller's state at a step boundary, after all other events of this boundary. Runs that do not learn from
// steps need no state.
void Adaptation::log_state_if_due(int64_t after_step) {
  if (after_step <= state_step_ || after_step % steps_between_states != 0) return;
  if (!Controller::learns_from_steps(config_)) return;
  log_.append(ControllerState{after_step, begin_step_, controller_.current(), controller_.save_state()});
  state_step_ = after_step;
}

Reaction Adaptation::after_step(const StepRecord& record) {
  log_state_if_due(record.step - 1);
  Reaction reaction = controller_.observe(observation_of(record));
  if (const auto& decision = reaction.decision) {
    log_.append(*decision);
    if (decision->moves) predicted_gain_ = decision->choice.predicted_gain;
    if (config_.adapt.advise) advise(*decision);
  }
  for (const Realised& realised : reaction.realised) log_.append(LoggedRealised{record.step, realised});
  return reaction;
}

void Adaptation::advise(const Decision& decision) {
  if (!decision.choice.target || *decision.choice.target == decision.current) {
    advised_.reset();
  } else if (advised_ != decision.choice.target) {
    advised_ = decision.choice.target;
    note_(concat("step ", decision.step, ": would change ", describe_change(decision.current, *advised_), "; ",
                 goodput_gain(decision.choice.predicted_gain), " predicted"));
  }
}

std::string Adaptation::after_switch(const SwitchReport& report) {
  log_.append(report);
  const std::optional<double> gain = std::exchange(predicted_gain_, std::nullopt);
  controller_.report(report);
  std::string text = describe(report, gain);
  note_(text);
  return text;
}

void Adaptation::after_calibration(const RunCalibration& calibration) {
  log_.append(calibration);
  controller_.calibrated(calibration);
  note_(concat("step ", calibration.step, ": ", describe(calibration), "; training stood still for ",
               format_duration(calibration.seconds)));
}

void Adaptation::after_ranks_changed(const RanksChanged& change) {
  log_.append(change);
  predicted_gain_.reset();
  controller_.ranks_changed(change);
}

void Adaptation::sync() { log_.sync(); }

std::optional<SwitchIntent> Adaptation::command(int64_t step, const Command& command) {
  std::optional<SwitchIntent> intent = controller_.command(command);
  log_.append(LoggedCommand{step, command});
  return intent;
}

std::string describe(const SwitchReport& report, std::optional<double> predicted_gain) {
  const std::string change = describe_change(report.from, report.to);
  switch (report.outcome) {
    case SwitchReport::Outcome::moved:
      return concat(
          "step ", report.after_step, ": ", change,
          predicted_gain && std::isfinite(*predicted_gain) ? concat("; ", goodput_gain(*predicted_gain), " predicted")
                                                           : "",
          report.from.strategy != report.to.strategy ? concat("; pause ", pause_of(report.pause_seconds)) : "");
    case SwitchReport::Outcome::vetoed:
      return concat("step ", report.after_step, ": stays as it was, instead of ", change, ": ", report.reason);
    case SwitchReport::Outcome::rolled_back:
      return concat("step ", report.after_step, ": moved back, instead of ", change, ": ", report.reason, "; pause ",
                    pause_of(report.pause_seconds));
  }
  fail_check("known outcome", __FILE__, __LINE__, "");
}

}  // namespace copus
