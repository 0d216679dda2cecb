// The interface of policies, which Copus and its baselines share. A policy chooses, from the observations alone, which
// configuration a run should be in, and gives the reason. Other code moves the job there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/orchestrator/learning_rate/rate_rule.h"
#include "copus/orchestrator/observation.h"
#include "copus/orchestrator/state_values.h"
#include "copus/performance/step_time.h"

namespace copus {

// A configuration that the job could be in.
struct Candidate {
  Configuration configuration;
  double step_seconds = 0;        // corrected by measured steps (performance/measured/learning.h)
  double relative_deviation = 0;  // one standard deviation of the logarithm of step_seconds
  int64_t measured_steps = 0;
  bool is_layout_measured = false;  // with this batch or another
  StepTimeParts predicted = {};     // parts of the step time before the correction

  double throughput() const { return static_cast<double>(configuration.global_batch) / step_seconds; }  // samples/s
};

// The inputs of a policy at a decision.
struct Situation {
  Observation latest;
  Configuration current;
  // All feasible configurations, `current` included. Empty if step times are not predicted; the policy then needs none.
  const std::vector<Candidate>& candidates;
  int64_t samples_since_switch = 0;  // since the beginning of the run if there was none
  double seconds_since_switch = 0;
  double rate_cap = 0;       // the B_c that the learning rate uses from this decision on
  bool holds_batch = false;  // whether the batch must not change in this phase of the learning rate's schedule
  // Expected pause of a re-layout to this strategy (Controller::pause_seconds). A call may take milliseconds, so
  // policies make few calls.
  std::function<double(const ParallelStrategy&)> pause_seconds = {};
};

// Explains why the batch does not change in a phase of the learning rate's schedule that adapt.hold_in names.
std::string why_batch_is_held(SchedulePhase phase);

// A candidate with its Goodput at adapt.alpha, whatever the policy (the published rule of COPUS alone uses 1/2).
struct RankedCandidate {
  Configuration configuration;
  double step_seconds = 0;
  double goodput = 0;    // samples/s, each worth as much as one in the reference batch, at phi, or at its
                         // lower bound if that alone is known
  double gain_low = 0;   // relative gain over the current configuration at the low end of phi's interval
  double gain_high = 0;  // the same at the high end
};

struct Choice {
  std::optional<Configuration> target;  // empty: stay
  std::string reason;                   // reason to move or hold, in words: "Goodput +23 %, ..."
  double predicted_gain = 0;            // Goodput of the target, or to hold of the best candidate, / current - 1
  std::vector<RankedCandidate> best;    // at most five, best first
  // Factors on the schedule's learning rate, if the policy sets its own: in the current configuration from the next
  // update on, and in the target. No cap limits these factors. Empty: the run uses the factors of [optimizer], at the
  // situation's cap (rate_factor).
  std::optional<double> rate_factor, target_rate_factor;
  // Step boundary of the switch, set by a script that repeats a run. Empty: as soon as possible.
  std::optional<int64_t> commit_after_step;
};

// A deterministic rule. It may keep state: it sees every step of a run and is asked at every decision, in order.
class Policy {
 public:
  virtual ~Policy() = default;
  // Shows the policy a step and the configuration that it ran in; called after every step, before choose.
  virtual void observe(const Observation&, const Configuration&) {}
  // Whether the policy must be asked after this step, even if the interval between decisions has not passed. The next
  // step runs in `current`.
  virtual bool is_due(const Observation& /*latest*/, const Configuration& /*current*/) const { return false; }
  virtual Choice choose(const Situation& situation) = 0;
  // Replaces the measured critical batches of noise_scale.calibration, which the run has measured itself.
  virtual void learn(const std::vector<MeasuredCriticalBatch>& /*critical_batches*/) {}
  // The belief about the noise scale that the learning rate's cap follows.
  virtual NoiseBelief belief(const Observation& latest) const { return believed_noise(latest); }
  // Lists the policy's state.
  virtual void visit_state(StateValues& /*values*/) {}
};

// Makes the policy that adapt.policy names, which is not PolicyKind::none. `file_text` is the content of adapt.file,
// which two policies need: "oracle" (lines "consumed_samples noise_scale", linear in between; # begins a comment) and
// "script" (policy_script.cpp). Throws UserError if settings contradict each other, or the file cannot be parsed.
std::unique_ptr<Policy> make_policy(const JobConfig& config, std::string_view file_text = {});

}  // namespace copus
