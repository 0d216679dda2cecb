// Replays a run's logs: gives a controller all inputs that the run's controller received, in the same order. A replay
// brings the controller of a resumed run up to date, or checks whether a controller makes the same decisions.
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
  std::string what;  // "the log does not switch, the replay does", ...
};

// Says that the controller of a resumed run starts anew, and why.
std::string describe(const ReplayDifference& difference);

// Thrown if this program cannot restore a controller's state from a log.
class UnusableState : public UserError {
 public:
  using UserError::UserError;
};

// Returns the run's controller as it was at the boundary `until_step`. Makes the controller of the log's latest
// ControllerBegin at or before this boundary, restores the latest state after that beginning, if one is logged, and
// replays all later events and steps. Returns no controller if the log has no such beginning. If a switch was announced
// but its outcome is not logged, it is the controller's under_way() and must be announced again.
//
// `difference` is set if the controller's decisions differ from the log's, because the run's configuration has changed,
// or if the decisions cannot be known, because lines of run.jsonl are missing. Then only the controller's knowledge()
// may be used. A controller that does not learn from steps needs only the steps with events at their boundaries.
//
// Throws UserError if the files do not belong together. Also throws UnusableState.
struct ReplayedController {
  Controller controller;
  std::optional<ReplayDifference> difference;
};
std::optional<ReplayedController> bring_up_to_date(const AnyConfig& config, const std::vector<StepRecord>& records,
                                                   const std::vector<DecisionEvent>& events, int64_t until_step);

// Compares a replay with the run's log, from the point where the run was last resumed with changed settings.
struct Replay {
  int64_t earlier_decisions = 0;  // made under earlier settings, so not replayed
  int64_t decisions = 0;          // equal decisions
  int64_t switches = 0;
  std::optional<ReplayDifference> difference;
};
// Replays a run. Throws UserError if the files do not belong together, if the log of decisions is missing, or if
// run.jsonl lacks lines that the replay needs.
Replay replay(const AnyConfig& config, const std::vector<StepRecord>& records,
              const std::vector<DecisionEvent>& events);

// Returns the decisions that the policy of `config` makes at each point of the run where the run's policy decided. This
// is open-loop: all inputs come from the run's log, although the run would have continued differently after a different
// decision. `file` is the content of adapt.file. Throws as replay() does.
std::vector<Decision> replay_open_loop(const AnyConfig& config, const std::string& file,
                                       const std::vector<StepRecord>& records,
                                       const std::vector<DecisionEvent>& events);

}  // namespace copus
