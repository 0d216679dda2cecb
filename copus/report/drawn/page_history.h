// Makes the part of the decision log that a run's page shows: the switches with their reasons, and all other events.
// Only .cpp files of this directory may include this header, because it uses the JSON library.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "copus/page/web_page.h"
#include "copus/record/step_record.h"
#include "copus/report/logs/decision_log.h"

namespace copus {

// A switch and what led to it.
struct ReportedSwitch {
  SwitchReport report;
  std::string reason;                    // why it was tried
  std::optional<double> predicted_gain;  // empty if a user requested the switch
  std::optional<Realised> realised;      // set once enough steps have run
};

std::vector<ReportedSwitch> switches_of(const std::vector<DecisionEvent>& events);

// Whether the job switched, or why it did not.
std::string outcome_of(const SwitchReport& report);

// "with 3 ranks: d=4 -> d=3".
std::string change_of_ranks(const RanksChanged& change);

// The switches for the chart: a list of {"label", "step", "tokens", "seconds", "change", "outcome", "reason"}. Switches
// are numbered from 1, as in the table of switches.
nlohmann::json switch_marks(const std::vector<ReportedSwitch>& switches, const std::vector<StepRecord>& records);

// The changes of a job's ranks for the chart, in the same form, without numbers.
nlohmann::json rank_marks(const std::vector<DecisionEvent>& events, const std::vector<StepRecord>& records);

// When the controller decided not to switch: at most `most_points` positions, in the form that a curve has.
nlohmann::json held_decisions(const std::vector<DecisionEvent>& events, const std::vector<StepRecord>& records,
                              size_t most_points);

WebTable switch_table(const std::vector<ReportedSwitch>& switches);

// Returns a table of events in order: the changes of ranks, and all decisions and requests that are not in the table of
// switches. At most `most_rows` of the decisions not to switch are shown, evenly spread over the run.
WebTable decision_table(const std::vector<DecisionEvent>& events, size_t most_rows);

}  // namespace copus
