// Replays a run's logs: tells a controller everything that the run's controller was told, in the same order, to go on
// with a run that was interrupted, and to see whether it decides the same again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/config/run_config.h"
#include "copus/record/step_record.h"
#include "copus/report/decision_log.h"

namespace copus {

// The place where a replay begins to differ from the log.
struct ReplayDifference {
  int64_t step = 0;
  std::string what;  // "the log holds, the replay moves", ...
};

// Says that a controller which is to go on has to begin anew, and why.
std::string describe(const ReplayDifference& difference);

// A controller's state in a log is none that this program can restore.
class UnusableState : public UserError {
 public:
  using UserError::UserError;
};

// Makes the controller of the log's latest beginning at or before the boundary `until_step`, brings it to the latest
// state behind that, if there is one, and tells it everything from there on. A switch that was announced and not
// reported by then is its under_way(), to be announced again. Empty: the log has no such beginning. `difference` is set
// where its decisions differ from the log's, since the run's configuration has changed, or where it cannot know what
// was decided, since lines of run.jsonl are missing; the controller then is of no use except for its knowledge(). Of
// steps that the controller does not learn from, those at whose boundaries there are events are enough. Throws
// UserError where the files do not belong together, and UnusableState.
struct ReplayedController {
  Controller controller;
  std::optional<ReplayDifference> difference;
};
std::optional<ReplayedController> bring_up_to_date(const AnyConfig& config, const std::vector<StepRecord>& records,
                                                   const std::vector<DecisionEvent>& events, int64_t until_step);

// Comparison of a repeated run with its log, under the run's present settings: since it was last resumed with others.
struct Replay {
  int64_t earlier_decisions = 0;  // made under earlier settings: not asked again
  int64_t decisions = 0;          // that were the same
  int64_t switches = 0;
  std::optional<ReplayDifference> difference;
};
// Replays a run. Throws UserError where the files do not belong together, the log of decisions is missing, or lines of
// run.jsonl are, without which nobody can tell.
Replay replay(const AnyConfig& config, const std::vector<StepRecord>& records,
              const std::vector<DecisionEvent>& events);

// Decisions of the policy of `config` at each point of the run where it would have decided. This is open-loop: after
// another choice the run itself would have gone on differently. `file` holds scripts and traces. Throws as replay().
std::vector<Decision> replay_open_loop(const AnyConfig& config, const std::string& file,
                                       const std::vector<StepRecord>& records,
                                       const std::vector<DecisionEvent>& events);

}  // namespace copus
