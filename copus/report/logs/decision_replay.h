// Replays a run's logs: gives a controller all inputs of the run's controller, in the same order. A replay resumes an
// interrupted run, or checks whether the same decisions follow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/config/run_config.h"
#include "copus/record/step_record.h"
#include "copus/report/logs/decision_log.h"

namespace copus {

// The first difference between a replay and the log.
struct ReplayDifference {
  int64_t step = 0;
  std::string what;  // "the log holds, the replay moves", ...
};

// Says that the controller of a resumed run has to begin anew, and why.
std::string describe(const ReplayDifference& difference);

// A controller's state in a log cannot be restored by this program.
class UnusableState : public UserError {
 public:
  using UserError::UserError;
};

// Returns the run's controller at the boundary `until_step`. Makes the controller of the log's latest beginning at or
// before this boundary, restores the latest state after that beginning, if there is one, and replays all later events
// and steps. A switch that was announced but not yet reported is the controller's under_way(), and must be announced
// again. Empty if the log has no such beginning.
//
// `difference` is set if the controller's decisions differ from the log's, because the run's configuration has changed,
// or if the decisions cannot be known, because lines of run.jsonl are missing. Then only the controller's knowledge()
// may be used. If the controller does not learn from steps, only the steps with events at their boundaries are needed.
// Throws UserError if the files do not belong together. Also throws UnusableState.
struct ReplayedController {
  Controller controller;
  std::optional<ReplayDifference> difference;
};
std::optional<ReplayedController> bring_up_to_date(const AnyConfig& config, const std::vector<StepRecord>& records,
                                                   const std::vector<DecisionEvent>& events, int64_t until_step);

// Comparison of a replay with the run's log, since the run was last resumed with other settings.
struct Replay {
  int64_t earlier_decisions = 0;  // made under earlier settings: not replayed
  int64_t decisions = 0;          // equal decisions
  int64_t switches = 0;
  std::optional<ReplayDifference> difference;
};
// Replays a run. Throws UserError if the files do not belong together, if the log of decisions is missing, or if lines
// of run.jsonl are missing that the replay needs.
Replay replay(const AnyConfig& config, const std::vector<StepRecord>& records,
              const std::vector<DecisionEvent>& events);

// Returns the decisions of the policy of `config` at each point of the run where it would have decided. This is
// open-loop: the run itself would have continued differently after a different decision. `file` holds scripts and
// traces. Throws as replay() does.
std::vector<Decision> replay_open_loop(const AnyConfig& config, const std::string& file,
                                       const std::vector<StepRecord>& records,
                                       const std::vector<DecisionEvent>& events);

}  // namespace copus
