// The controller of a run: it is told of every step, learns how long steps take, asks the policy at intervals,
// announces switches and follows what came of them. A deterministic state machine without I/O: the run and `copus
// replay` drive the same object with the same sequence, and a resumed run brings a new one up to date from its logs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/orchestrator/observation.h"
#include "copus/orchestrator/policy.h"
#include "copus/performance/learning.h"

namespace copus {

// One decision, as decisions.jsonl keeps it.
struct Decision {
  int64_t step = 0;  // after which it was made
  int64_t consumed_samples = 0;
  std::string policy;
  Configuration current;
  std::optional<double> noise_scale, noise_scale_low, noise_scale_high, critical_batch;
  Choice choice;
  // The same under the other exponent of Goodput (alpha 0 where the run decides by 0.5 and the reverse): what would
  // have been chosen; empty: to stay.
  std::optional<Configuration> other_alpha_choice;
  bool moves = false;             // announced as a switch; false where it holds or only advises
  int64_t commit_after_step = 0;  // of a move: the boundary at which all ranks switch
  uint64_t inputs_hash = 0;       // of all that was observed before, to find out where a replay begins to differ
};

// What a switch was predicted to bring and what it brought, once enough steps have run in the new configuration.
struct Realised {
  int64_t decision_step = 0;
  Configuration from, to;
  double predicted_step_seconds = 0, realised_step_seconds = 0;
  double predicted_gain = 0;  // of Goodput, relative, when it was decided
  // With both sides' measured step seconds, at the phi measured since; NaN where none is known.
  double realised_gain = 0;
  // Loss decrease per second over the window after the switch, relative to the trend before it; empty where the trend
  // is not significant.
  std::optional<double> progress_ratio;
};

// What the ranks are to do: broadcast by rank 0, alike on all of them.
struct SwitchIntent {
  Configuration configuration;
  int64_t commit_after_step = 0;
  double critical_batch = 0;  // B_c that the learning rate's factor counts with until the next switch; 0: not known
  uint64_t inputs_hash = 0;
};

class Controller {
 public:
  // Steps between the announcement of a re-layout and its commit, in which ranks prepare beside training. A switch of
  // batch or micro-batch alone commits at the boundary after the announcement has reached everybody.
  static constexpr int64_t lead_steps = 2;

  // Of a run that begins in `initial` (configuration_of(config), or that of a checkpoint) with `knowledge` of step
  // times, and with the text of adapt.file (empty where none is named). Throws UserError where there is nothing to
  // choose among or nothing that says how fast the cluster computes, and what make_policy throws.
  Controller(const RunConfig& config, const Configuration& initial, Knowledge knowledge, const std::string& file = "");
  ~Controller();
  Controller(Controller&&) noexcept;
  Controller& operator=(Controller&&) noexcept;

  // The run goes on in a new process, whose first steps set up memory and caches and do not count as measured ones.
  void resumed();
  // After every step, before anything else that happens at its boundary. A decision where one was due.
  std::optional<Decision> observe(const Observation& observation);
  // What the latest decision or command wants done, once.
  std::optional<SwitchIntent> take_intent();
  // What came of it. A configuration that was vetoed or rolled back for memory is not chosen again. One that only
  // advises is also told of switches that somebody else decided.
  void report(const SwitchReport& report);
  // What became known since the last call about earlier switches; to be called after every `observe`.
  std::vector<Realised> take_realised();
  // Throws UserError where a target is infeasible; the message says why.
  void command(const Command& command);

  // The switch that is under way: announced, and not reported yet.
  const std::optional<SwitchIntent>& announced() const;
  bool pinned() const;
  const Configuration& current() const;
  Knowledge knowledge() const;
  // Of a step in the current configuration.
  Corrected expected_step() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace copus
