#include "copus/report/drawn/page_history.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "copus/base/error.h"
#include "copus/base/text/escape_html.h"
#include "copus/base/text/units.h"
#include "copus/description/configuration_text.h"
#include "copus/report/drawn/page_curves.h"

namespace copus {

namespace {

const StepRecord* record_after(const std::vector<StepRecord>& records, int64_t step) {
  const auto record =
      std::lower_bound(records.begin(), records.end(), step, [](const StepRecord& a, int64_t b) { return a.step < b; });
  return record == records.end() ? nullptr : &*record;
}

std::string percent(double share) { return std::isfinite(share) ? format_number("%+.1f %%", 100 * share) : "-"; }

std::string pause_text(double seconds) {
  if (seconds <= 0) return "none";
  return seconds < 1 ? format_number("%.3g ms", 1000 * seconds) : format_duration(seconds);
}

const Decision* held(const DecisionEvent& event) {
  const auto* decision = std::get_if<Decision>(&event);
  return decision != nullptr && !decision->moves ? decision : nullptr;
}

// Returns the events, but of the decisions not to switch at most `most`, evenly spread.
std::vector<const DecisionEvent*> thinned(const std::vector<DecisionEvent>& events, size_t most) {
  const auto count = static_cast<size_t>(std::count_if(events.begin(), events.end(), held));
  std::vector<const DecisionEvent*> kept;
  size_t index = 0;
  for (const DecisionEvent& event : events) {
    if (held(event) != nullptr && count > most) {
      const size_t i = index++;
      if (i * most / count == (i + 1) * most / count) continue;
    }
    kept.push_back(&event);
  }
  return kept;
}

std::string noise_scale_text(const Decision& decision) {
  const auto number = [](double value) { return format_number("%.3g", value); };
  if (!decision.noise_scale_low) return "-";
  if (!decision.noise_scale_high) return concat("at least ", number(*decision.noise_scale_low));
  return concat(number(*decision.noise_scale_low), " to ", number(*decision.noise_scale_high));
}

std::string command_text(const Command& command) {
  switch (command.kind) {
    case Command::Kind::pin:
      return "stay in this configuration";
    case Command::Kind::unpin:
      return "decide again";
    case Command::Kind::pause:
      return "pause";
    case Command::Kind::resume:
      return "go on";
    case Command::Kind::force:
      return command.target ? concat("move to ", to_string(*command.target)) : "move";
  }
  fail_check("known command", __FILE__, __LINE__, "");
}

// Returns the cells of an event's row: the step, the event, the gain, the noise scale, and the reason. Empty for events
// that other tables show.
struct EventRow {
  std::vector<std::string> operator()(const Decision& decision) const {
    const std::string what = decision.moves ? "moves" : decision.choice.target ? "advises" : "holds";
    const std::string change =
        decision.choice.target ? concat(" ", describe_change(decision.current, *decision.choice.target)) : "";
    return {std::to_string(decision.step), what + escape_html(change), percent(decision.choice.predicted_gain),
            noise_scale_text(decision), escape_html(decision.choice.reason)};
  }
  std::vector<std::string> operator()(const LoggedCommand& logged) const {
    return {std::to_string(logged.step), "a user asks", "-", "-", escape_html(command_text(logged.command))};
  }
  std::vector<std::string> operator()(const ControllerBegin& begin) const {
    return {std::to_string(begin.step), "begins", "-", "-",
            escape_html(concat("policy ", begin.policy, begin.advise ? ", which only advises" : "", ", in ",
                               to_string(begin.configuration)))};
  }
  std::vector<std::string> operator()(const ControllerResumed& resumed) const {
    return {std::to_string(resumed.step), "goes on", "-", "-", "in another process"};
  }
  std::vector<std::string> operator()(const RanksChanged& change) const {
    return {std::to_string(change.after_step), "goes on " + escape_html(change_of_ranks(change)), "-", "-",
            escape_html(change.reason)};
  }
  std::vector<std::string> operator()(const Unmeasured& unmeasured) const {
    return {std::to_string(unmeasured.step), "is not measured", "-", "unknown", escape_html(unmeasured.reason)};
  }
  std::vector<std::string> operator()(const RunCalibration& calibration) const {
    return {std::to_string(calibration.step), "calibrates", "-", format_number("%.3g", calibration.noise_scale),
            escape_html(describe(calibration))};
  }
  std::vector<std::string> operator()(const SwitchReport&) const { return {}; }
  std::vector<std::string> operator()(const ControllerState&) const { return {}; }
  std::vector<std::string> operator()(const LoggedRealised&) const { return {}; }
};

}  // namespace

std::string outcome_of(const SwitchReport& report) {
  switch (report.outcome) {
    case SwitchReport::Outcome::moved:
      return "moved";
    case SwitchReport::Outcome::vetoed:
      return concat("refused: ", report.reason);
    case SwitchReport::Outcome::rolled_back:
      return concat("moved back: ", report.reason);
  }
  fail_check("known outcome", __FILE__, __LINE__, "");
}

std::string change_of_ranks(const RanksChanged& change) {
  return concat("with ", counted(change.ranks, "rank"),
                change.from == change.to ? "" : concat(": ", describe_change(change.from, change.to)));
}

std::vector<ReportedSwitch> switches_of(const std::vector<DecisionEvent>& events) {
  std::vector<ReportedSwitch> switches;
  std::optional<ReportedSwitch> announced;
  for (const DecisionEvent& event : events) {
    if (std::holds_alternative<RanksChanged>(event)) {
      announced.reset();
    } else if (const auto* decision = std::get_if<Decision>(&event); decision != nullptr && decision->moves) {
      announced = {{}, decision->choice.reason, decision->choice.predicted_gain, std::nullopt};
    } else if (const auto* logged = std::get_if<LoggedCommand>(&event);
               logged != nullptr && logged->command.kind == Command::Kind::force) {
      announced = {{}, "a user has asked for it (copus ctl)", std::nullopt, std::nullopt};
    } else if (const auto* report = std::get_if<SwitchReport>(&event)) {
      ReportedSwitch one = std::exchange(announced, std::nullopt).value_or(ReportedSwitch{});
      one.report = *report;
      switches.push_back(std::move(one));
    } else if (const auto* realised = std::get_if<LoggedRealised>(&event)) {
      const auto found = std::find_if(switches.rbegin(), switches.rend(), [&](const ReportedSwitch& candidate) {
        return candidate.report.from == realised->realised.from && candidate.report.to == realised->realised.to &&
               candidate.report.outcome == SwitchReport::Outcome::moved;
      });
      if (found != switches.rend()) found->realised = realised->realised;
    }
  }
  return switches;
}

nlohmann::json switch_marks(const std::vector<ReportedSwitch>& switches, const std::vector<StepRecord>& records) {
  auto marks = nlohmann::json::array();
  for (size_t i = 0; i < switches.size(); ++i) {
    const ReportedSwitch& one = switches[i];
    const StepRecord* record = record_after(records, one.report.after_step);
    if (record == nullptr) continue;
    nlohmann::json mark = position_of(*record);
    mark["label"] = std::to_string(i + 1);
    mark["change"] = describe_change(one.report.from, one.report.to);
    mark["outcome"] = outcome_of(one.report);
    mark["moved"] = one.report.outcome == SwitchReport::Outcome::moved;
    mark["reason"] = one.reason;
    marks.push_back(std::move(mark));
  }
  return marks;
}

nlohmann::json rank_marks(const std::vector<DecisionEvent>& events, const std::vector<StepRecord>& records) {
  auto marks = nlohmann::json::array();
  for (const DecisionEvent& event : events) {
    const auto* change = std::get_if<RanksChanged>(&event);
    const StepRecord* record = change == nullptr ? nullptr : record_after(records, change->after_step);
    if (record == nullptr) continue;
    nlohmann::json mark = position_of(*record);
    mark["label"] = "R";
    mark["change"] = change_of_ranks(*change);
    mark["outcome"] = "moved";
    mark["moved"] = true;
    mark["reason"] = change->reason;
    marks.push_back(std::move(mark));
  }
  return marks;
}

nlohmann::json held_decisions(const std::vector<DecisionEvent>& events, const std::vector<StepRecord>& records,
                              size_t most_points) {
  std::vector<const StepRecord*> moments;
  for (const DecisionEvent* event : thinned(events, most_points)) {
    const Decision* decision = held(*event);
    const StepRecord* record = decision == nullptr ? nullptr : record_after(records, decision->step);
    if (record != nullptr) moments.push_back(record);
  }
  return positions_of(moments);
}

WebTable switch_table(const std::vector<ReportedSwitch>& switches) {
  WebTable table{{{"switch"},
                  {"after step"},
                  {"change"},
                  {"reason", true},
                  {"Goodput predicted"},
                  {"realised"},
                  {"step predicted"},
                  {"realised"},
                  {"pause"},
                  {"outcome", true}},
                 {}};
  for (size_t i = 0; i < switches.size(); ++i) {
    const auto& [report, reason, predicted_gain, realised] = switches[i];
    const auto seconds = [](double value) { return format_number("%.3g s", value); };
    table.rows.push_back(
        {std::to_string(i + 1), std::to_string(report.after_step), escape_html(describe_change(report.from, report.to)),
         escape_html(reason), predicted_gain ? percent(*predicted_gain) : "-",
         realised ? percent(realised->realised_gain) : "-", realised ? seconds(realised->predicted_step_seconds) : "-",
         realised ? seconds(realised->realised_step_seconds) : "-", pause_text(report.pause_seconds),
         escape_html(outcome_of(report))});
  }
  return table;
}

WebTable decision_table(const std::vector<DecisionEvent>& events, size_t most_rows) {
  WebTable table{{{"after step"}, {"decision"}, {"Goodput of the best"}, {"noise scale"}, {"reason", true}}, {}};
  for (const DecisionEvent* event : thinned(events, most_rows)) {
    std::vector<std::string> row = std::visit(EventRow{}, *event);
    if (!row.empty()) table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace copus
