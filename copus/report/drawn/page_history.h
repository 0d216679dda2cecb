// What a run's log of decisions tells its page: the switches with their reasons, and what happened besides. Only
// .cpp files of this room include this header, since it names JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "copus/page/web_page.h"
#include "copus/record/step_record.h"
#include "copus/report/decision_log.h"

namespace copus {

// A switch and what led to it.
struct ReportedSwitch {
  SwitchReport report;
  std::string reason;                    // for which it was tried
  std::optional<double> predicted_gain;  // empty where a user asked for the switch
  std::optional<Realised> realised;      // set once enough steps have run
};

std::vector<ReportedSwitch> switches_of(const std::vector<DecisionEvent>& events);

// Whether the job moved, or why it did not.
std::string outcome_of(const SwitchReport& report);

// "with 3 ranks: d=4 -> d=3".
std::string change_of_ranks(const RanksChanged& change);

// The switches for the chart: a list of {"label", "step", "tokens", "seconds", "change", "outcome", "reason"}. Switches
// are numbered from 1 on, as in their table.
nlohmann::json switch_marks(const std::vector<ReportedSwitch>& switches, const std::vector<StepRecord>& records);

// Likewise the changes of a job's ranks, which have no numbers.
nlohmann::json rank_marks(const std::vector<DecisionEvent>& events, const std::vector<StepRecord>& records);

// The moments of decisions that held: positions as lists, as a curve has them, `most_points` of them at most.
nlohmann::json held_decisions(const std::vector<DecisionEvent>& events, const std::vector<StepRecord>& records,
                              size_t most_points);

WebTable switch_table(const std::vector<ReportedSwitch>& switches);

// Everything else that was decided or asked for, and the changes of ranks, in order. Of more than `most_rows` decisions
// that held, so many are shown, evenly over the run.
WebTable decision_table(const std::vector<DecisionEvent>& events, size_t most_rows);

}  // namespace copus
