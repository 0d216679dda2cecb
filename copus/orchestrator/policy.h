// Policies: which configuration a run should be in, as a function of what was observed. They know nothing of how a job
// moves; they return what they would choose and why. All of them stand behind one interface, Copus and its baselines.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/orchestrator/observation.h"

namespace copus {

// A configuration that the job could be in.
struct Candidate {
  Configuration configuration;
  double step_seconds = 0;        // corrected by what was measured (performance/learning.h)
  double relative_deviation = 0;  // one standard deviation of the logarithm of step_seconds
  int64_t measured_steps = 0;

  double throughput() const { return static_cast<double>(configuration.global_batch) / step_seconds; }  // samples/s
};

// What a policy sees at a decision.
struct Situation {
  Observation latest;
  Configuration current;
  const std::vector<Candidate>& candidates;  // all that are feasible; `current` is among them
  int64_t samples_since_switch = 0;          // or since the beginning
  double relayout_seconds = 0;               // that a re-layout is expected to pause training, measured ones counted
};

// A candidate as a policy ranks it.
struct RankedCandidate {
  Configuration configuration;
  double step_seconds = 0;
  double goodput = 0;       // at phi; in the unit of the policy
  double goodput_low = 0;   // relative gain over the current configuration at the low end of phi's interval
  double goodput_high = 0;  // and at the high end
};

struct Choice {
  std::optional<Configuration> target;  // empty: stay
  std::string reason;                   // why it moves or holds, in words: "+23 % holds from phi 12 to 31"
  double predicted_gain = 0;          // Goodput of the target (or of the best candidate, where it holds) / current - 1
  std::vector<RankedCandidate> best;  // at most five, best first
};

// Deterministic. A policy may remember what it has seen; it is asked at every decision of a run, in order.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual Choice choose(const Situation& situation) = 0;
};

// The policy that adapt.policy names. Throws UserError where its settings contradict each other (a script or a schedule
// that cannot be read).
std::unique_ptr<Policy> make_policy(const RunConfig& config);

}  // namespace copus
