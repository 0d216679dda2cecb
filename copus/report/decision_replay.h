// Tells a controller again what the controller of a run was told, in the same order: to go on with a run that was
// interrupted, and to see whether, or what, it decides again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/report/decision_log.h"
#include "copus/report/step_record.h"

namespace copus {

// Where a replay begins to differ from the log.
struct ReplayDifference {
  int64_t step = 0;
  std::string what;  // "the log holds, the replay moves", ...
};

// The controller of the log's latest beginning at or before the boundary `until_step`, told of everything up to there.
// A switch that was announced and not reported by then is its under_way(), to be announced again. Empty: the log has no
// such beginning. `difference`: what it decided is not what the log says, since the configuration of the run
// is another one by now; the controller then is of no use, but for its knowledge(). Throws UserError where the files do
// not belong together.
struct ReplayedController {
  Controller controller;
  std::optional<ReplayDifference> difference;
};
std::optional<ReplayedController> bring_up_to_date(const RunConfig& config, const std::vector<StepRecord>& records,
                                                   const std::vector<DecisionEvent>& events, int64_t until_step);

// A run again, to the same decisions, under the settings that it has by now: since it was last resumed with others.
struct Replay {
  int64_t earlier_decisions = 0;  // before that: not asked again
  int64_t decisions = 0;          // that were the same
  int64_t switches = 0;
  std::optional<ReplayDifference> difference;
};
// Throws UserError where the files do not belong together, or nothing was decided.
Replay replay(const RunConfig& config, const std::vector<StepRecord>& records,
              const std::vector<DecisionEvent>& events);

// What the policy of `config` would have chosen at each of its decisions along the way that the run took: open-loop,
// since a run that had moved otherwise would have gone on otherwise. Scripts and traces are in `file`.
std::vector<Decision> replay_open_loop(const RunConfig& config, const std::string& file,
                                       const std::vector<StepRecord>& records,
                                       const std::vector<DecisionEvent>& events);

}  // namespace copus
