#include "copus/report/logs/decision_replay.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "copus/base/error.h"
#include "copus/report/logs/run_log.h"

namespace copus {
namespace {

using Events = std::vector<DecisionEvent>;
using EventIterator = Events::const_iterator;

// Names, for the user, the first field in which the two lines of an event differ.
std::string first_difference(const DecisionEvent& logged, const DecisionEvent& replayed) {
  const auto ours = nlohmann::ordered_json::parse(to_line(replayed)),
             theirs = nlohmann::ordered_json::parse(to_line(logged));
  for (const auto& [name, value] : theirs.items()) {
    if (!ours.contains(name) || ours[name] != value) {
      return concat("\"", name, "\" is ", value.dump(), " in the log and ",
                    ours.contains(name) ? ours[name].dump() : "nothing", " in the replay");
    }
  }
  return "";
}

// Returns whether the two events are the same; NaN is equal to NaN.
bool is_same(const DecisionEvent& logged, const DecisionEvent& replayed) {
  return to_line(logged) == to_line(replayed);
}

EventIterator latest_begin(const Events& events, int64_t until_step) {
  auto found = events.end();
  for (auto event = events.begin(); event != events.end(); ++event) {
    if (step_of(*event) > until_step) break;
    if (std::holds_alternative<ControllerBegin>(*event)) found = event;
  }
  return found;
}

// Throws UserError if the run cannot have been in this configuration. `event` is named in the message.
void check_possible(const AnyConfig& config, const Configuration& configuration, const DecisionEvent& event) {
  const auto reason = std::visit([&](const auto& job) { return infeasible_reason(job, configuration); }, config);
  if (!reason) return;
  const auto* own = std::get_if<RunConfig>(&config);
  throw UserError(
      concat("decisions.jsonl, after step ", step_of(event), ": the run cannot have been in ", to_string(configuration),
             " (", *reason, "): the file is damaged, or of another run",
             own && own->cluster.is_modelled() ? ", or it was resumed as another job (cluster.stands_for)" : ""));
}

void check_possible(const AnyConfig& config, const DecisionEvent& event) {
  if (const auto* begin = std::get_if<ControllerBegin>(&event)) check_possible(config, begin->configuration, event);
  if (const auto* state = std::get_if<ControllerState>(&event)) check_possible(config, state->configuration, event);
  if (const auto* report = std::get_if<SwitchReport>(&event)) check_possible(config, report->to, event);
  if (const auto* change = std::get_if<RanksChanged>(&event)) check_possible(config, change->to, event);
}

// Returns the observation that a record of the run's log describes. Throws UserError if the record's step has a
// different global batch.
Observation observation_in(int64_t global_batch, const StepRecord& record, const AnyConfig& config) {
  const auto refuse = [&](const char* field, double value, const std::string& expected) {
    throw UserError(concat("run.jsonl, the line of step ", record.step, ": \"", field, "\" is ", value, ", expected ",
                           expected, ": the file is damaged, or of another run"));
  };
  const int64_t most_samples = std::numeric_limits<int64_t>::max() / job_of(config).train.sequence_length;
  if (record.consumed_samples > most_samples) {
    refuse("consumed_samples", static_cast<double>(record.consumed_samples), concat("at most ", most_samples));
  }
  if (record.step_seconds == 0) refuse("step_seconds", 0, "more than 0");
  if (record.small_batch && *record.small_batch >= static_cast<double>(global_batch)) {
    refuse("small_batch", *record.small_batch, concat("less than the global batch of ", global_batch));
  }
  return observation_of(record);
}

void restore_state(Controller& controller, const std::vector<std::string>& state, int64_t step) {
  try {
    controller.restore_state(state);
  } catch (const UserError& error) {
    throw UnusableState(concat("decisions.jsonl, the state after step ", step, ": ", error.what()));
  }
}

Controller controller_of(const ControllerBegin& begin, const AnyConfig& config) {
  check_possible(config, begin);
  Controller controller(config, begin.configuration, begin.knowledge, begin.file, begin.rate_factor);
  if (!begin.state.empty()) restore_state(controller, begin.state, begin.step);
  return controller;
}

// The events after a controller's beginning, up to a step boundary.
struct Segment {
  EventIterator begin, end;
  int64_t after_step, until_step;
};

// Follows a log with one controller: gives it the logged steps and compares its decisions.
class Follower {
 public:
  Follower(const AnyConfig& config, Controller& controller, const Segment& segment)
      : config_(config), controller_(controller), segment_(segment), event_(segment.begin) {}

  void follow(const std::vector<StepRecord>& records, Replay& replay) {
    events_after(segment_.after_step, replay);
    for (const StepRecord& record : records) {
      if (record.step <= segment_.after_step || replay.difference) continue;
      if (record.step > segment_.until_step) break;
      const Reaction reaction =
          controller_.observe(observation_in(controller_.current().global_batch, record, config_));
      decision_ = reaction.decision;
      realised_ = reaction.realised;
      events_after(record.step, replay);
      // The log of a killed run may lack the decision of its last step.
      const bool may_be_cut = event_ == segment_.end && &record == &records.back();
      if (replay.difference || may_be_cut) continue;
      if (decision_) replay.difference = {record.step, "the replay decides, and the log has no decision"};
      if (!realised_.empty())
        replay.difference = {record.step, "the replay knows what a switch brought, the log does not"};
    }
    if (!replay.difference && event_ != segment_.end) {
      throw UserError(concat("decisions.jsonl goes on after step ", step_of(*event_),
                             ", and run.jsonl has no such step ",
                             "there: the two are not of one run, or one of them is damaged"));
    }
  }

 private:
  void events_after(int64_t step, Replay& replay) {
    for (; event_ != segment_.end && step_of(*event_) == step && !replay.difference; ++event_) {
      if (auto what = std::visit([this](const auto& event) { return this->apply(event); }, *event_)) {
        replay.difference = {step, std::move(*what)};
      }
      replay.decisions += std::holds_alternative<Decision>(*event_);
      replay.switches += std::holds_alternative<SwitchReport>(*event_);
    }
  }

  // Each of these functions compares a logged event with the controller's own and applies it. Returns the difference,
  // or nothing.
  std::optional<std::string> apply(const Decision& logged) {
    if (!decision_) return "the log has a decision, and the replay makes none";
    Decision replayed = *std::exchange(decision_, std::nullopt);
    replayed.choice.reason = logged.choice.reason;  // the text of the reason may differ between versions
    if (is_same(logged, replayed)) return std::nullopt;
    return first_difference(logged, replayed);
  }

  std::optional<std::string> apply(const SwitchReport& report) {
    const std::optional<SwitchIntent>& intent = controller_.under_way();
    if (!intent && is_of_somebody_else(report)) {
      check_possible(config_, report);
      controller_.report(report);
      return std::nullopt;
    }
    if (!intent) return "the log has a switch that the replay has not announced";
    if (intent->configuration != report.to || intent->commit_after_step != report.after_step) {
      return concat("the log has a switch, and the replay has announced another one, after step ",
                    intent->commit_after_step);
    }
    controller_.report(report);
    return std::nullopt;
  }

  std::optional<std::string> apply(const LoggedRealised& logged) {
    if (realised_.empty()) return "the log says what a switch brought, and the replay does not know it";
    const LoggedRealised replayed{logged.step, realised_.front()};
    realised_.erase(realised_.begin());
    if (is_same(logged, replayed)) return std::nullopt;
    return first_difference(logged, replayed);
  }

  std::optional<std::string> apply(const LoggedCommand& logged) {
    try {
      controller_.command(logged.command);
      return std::nullopt;
    } catch (const UserError& error) {
      return concat("a command is refused in the replay: ", error.what());
    }
  }

  // Unmeasured steps left no observations.
  std::optional<std::string> apply(const Unmeasured&) { return std::nullopt; }

  std::optional<std::string> apply(const RunCalibration& calibration) {
    controller_.calibrated(calibration);
    return std::nullopt;
  }

  std::optional<std::string> apply(const ControllerResumed&) {
    controller_.mark_resumed();
    return std::nullopt;
  }

  std::optional<std::string> apply(const ControllerState& logged) {
    if (controller_.save_state() == logged.values) return std::nullopt;
    return "the log's state of what decides is not the replay's";
  }

  // The log may lack the decision of this boundary, because the process that wrote the log may have been lost. The
  // controller of another process, with which the run continued, had made the same decision.
  std::optional<std::string> apply(const RanksChanged& change) {
    const std::optional<SwitchIntent>& intent = controller_.under_way();
    const bool is_unseen_switch =
        intent && intent->configuration == change.from;  // the switch was made, but not logged
    if (change.from != controller_.current() && !is_unseen_switch) {
      return concat("the log has other ranks after ", to_string(change.from), ", and the replay is in ",
                    to_string(controller_.current()));
    }
    decision_.reset();
    realised_.clear();
    check_possible(config_, change);
    controller_.ranks_changed(change);
    return std::nullopt;
  }

  // Whether another program made this switch: a job that Copus only advises is changed by the program that trains it.
  bool is_of_somebody_else(const SwitchReport& report) const {
    return job_of(config_).adapt.advise && report.outcome == SwitchReport::Outcome::moved &&
           report.from == controller_.current();
  }

  static std::optional<std::string> apply(const ControllerBegin&) {
    fail_check("a segment has one beginning", __FILE__, __LINE__, "");
  }

  const AnyConfig& config_;
  Controller& controller_;
  Segment segment_;
  EventIterator event_;
  std::optional<Decision> decision_;
  std::vector<Realised> realised_;
};

Segment segment_from(EventIterator begin, const Events& events, int64_t until_step) {
  const auto end =
      std::find_if(begin + 1, events.end(), [&](const DecisionEvent& event) { return step_of(event) > until_step; });
  return {begin + 1, end, step_of(*begin), until_step};
}

// The steps without a record at whose boundaries there are events. The records are in order.
std::vector<StepSpan> missing_steps_of_events(const std::vector<StepRecord>& records, const Segment& segment) {
  std::vector<StepSpan> missing;
  for (auto event = segment.begin; event != segment.end; ++event) {
    const int64_t step = step_of(*event);
    if (step == segment.after_step || (!missing.empty() && missing.back().last == step)) continue;
    if (!std::ranges::binary_search(records, step, {}, &StepRecord::step)) missing.push_back({step, step});
  }
  return missing;
}

// Restores a controller to the latest state in the segment, if there is one, and returns the rest of the segment.
Segment after_latest_state(Controller& controller, const Segment& segment, const AnyConfig& config) {
  const auto is_state = [](const DecisionEvent& event) { return std::holds_alternative<ControllerState>(event); };
  const auto from_end = std::make_reverse_iterator(segment.end), to_begin = std::make_reverse_iterator(segment.begin);
  const auto found = std::find_if(from_end, to_begin, is_state);
  if (found == to_begin) return segment;
  check_possible(config, *found);
  const auto& state = std::get<ControllerState>(*found);
  restore_state(controller, state.values, state.step);
  return {found.base(), segment.end, state.step, segment.until_step};
}

void require_beginning(const Events& events) {
  if (!events.empty() && std::holds_alternative<ControllerBegin>(events.front())) return;
  const bool decides = std::any_of(events.begin(), events.end(), [](const DecisionEvent& event) {
    return !std::holds_alternative<Unmeasured>(event);
  });
  throw UserError(!decides ? "there is nothing to replay: the run has no decisions.jsonl"
                           : "decisions.jsonl is damaged: it does not begin with the event \"begin\"");
}

void require_all_steps(const std::vector<StepRecord>& records, const DecisionEvent& begin) {
  const int64_t until = records.empty() ? step_of(begin) : records.back().step;
  const std::vector<StepSpan> missing = missing_steps(records, step_of(begin), until);
  if (missing.empty()) return;
  throw UserError(concat("run.jsonl has no line of ", describe(missing),
                         ": what is decided follows from every step, and so nobody can tell whether it would be ",
                         "decided again; put the lines back if there is a copy of them"));
}

}  // namespace

std::string describe(const ReplayDifference& difference) {
  return concat("what was decided before cannot be decided again, from step ", difference.step,
                " on: ", difference.what);
}

std::optional<ReplayedController> bring_up_to_date(const AnyConfig& config, const std::vector<StepRecord>& records,
                                                   const std::vector<DecisionEvent>& events, int64_t until_step) {
  const auto begin = latest_begin(events, until_step);
  if (begin == events.end()) return std::nullopt;
  ReplayedController result{controller_of(std::get<ControllerBegin>(*begin), config), std::nullopt};
  const Segment segment = after_latest_state(result.controller, segment_from(begin, events, until_step), config);
  const std::vector<StepSpan> missing = Controller::learns_from_steps(config)
                                            ? missing_steps(records, segment.after_step, until_step)
                                            : missing_steps_of_events(records, segment);
  if (!missing.empty()) {
    result.difference = {missing.front().first, concat("run.jsonl has no line of ", describe(missing))};
    return result;
  }
  Replay replay;
  Follower(config, result.controller, segment).follow(records, replay);
  result.difference = std::move(replay.difference);
  return result;
}

Replay replay(const AnyConfig& config, const std::vector<StepRecord>& records,
              const std::vector<DecisionEvent>& events) {
  require_beginning(events);
  constexpr int64_t end = std::numeric_limits<int64_t>::max();
  const auto begin = latest_begin(events, end);
  require_all_steps(records, *begin);
  Replay replay;
  replay.earlier_decisions = std::count_if(
      events.begin(), begin, [](const DecisionEvent& event) { return std::holds_alternative<Decision>(event); });
  Controller controller = controller_of(std::get<ControllerBegin>(*begin), config);
  Follower(config, controller, segment_from(begin, events, end)).follow(records, replay);
  return replay;
}

std::vector<Decision> replay_open_loop(const AnyConfig& config, const std::string& file,
                                       const std::vector<StepRecord>& records,
                                       const std::vector<DecisionEvent>& events) {
  require_beginning(events);
  AnyConfig advising = config;
  std::visit([](JobConfig& job) { job.adapt.advise = true; }, advising);
  require_all_steps(records, events.front());
  for (const DecisionEvent& event : events) check_possible(config, event);
  std::optional<Controller> controller;
  const auto start = [&](const ControllerBegin& begin) {
    controller.emplace(advising, begin.configuration, begin.knowledge, file, begin.rate_factor);
  };
  start(std::get<ControllerBegin>(events.front()));
  std::vector<Decision> decisions;
  auto event = events.begin() + 1;
  for (const StepRecord& record : records) {
    Reaction reaction = controller->observe(observation_in(controller->current().global_batch, record, advising));
    if (reaction.decision) decisions.push_back(std::move(*reaction.decision));
    for (; event != events.end() && step_of(*event) <= record.step; ++event) {
      if (const auto* begin = std::get_if<ControllerBegin>(&*event)) {
        // A run that was resumed in another batch or layout began there without a switch.
        if (begin->configuration == controller->current()) {
          controller->mark_resumed();
        } else {
          start(*begin);
        }
      }
      if (const auto* report = std::get_if<SwitchReport>(&*event)) controller->report(*report);
      if (const auto* change = std::get_if<RanksChanged>(&*event)) controller->ranks_changed(*change);
      if (std::holds_alternative<ControllerResumed>(*event)) controller->mark_resumed();
      if (const auto* calibration = std::get_if<RunCalibration>(&*event)) controller->calibrated(*calibration);
    }
  }
  return decisions;
}

}  // namespace copus
