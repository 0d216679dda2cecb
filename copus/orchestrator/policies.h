// The policies, one file each or a few that belong together: policy_goodput.cpp, policy_batch.cpp, policy_cona.cpp,
// policy_script.cpp; and what they share. make_policy chooses among them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/orchestrator/policy.h"

namespace copus {

// phi by consumed samples, in ascending order, one point at least; in between linear, beyond constant.
using NoiseTrace = std::vector<std::pair<double, double>>;
// Throws UserError naming the line. Exposed for its messages.
NoiseTrace parse_noise_trace(std::string_view text, const std::string& source);

// From so many consumed samples on, this batch; in ascending order, the first from 0 on.
using StepSchedule = std::vector<std::pair<double, int64_t>>;
// "0:768 250B:1536": see policy_batch.cpp. Throws UserError naming the piece.
StepSchedule parse_step_schedule(std::string_view text, int64_t sequence_length);

// Copus; with `truth` the oracle.
std::unique_ptr<Policy> make_goodput_policy(const RunConfig& config, std::optional<NoiseTrace> truth);
// Those that set the batch alone, and the one that never moves, by config.adapt.policy.
std::unique_ptr<Policy> make_batch_policy(const RunConfig& config);
std::unique_ptr<Policy> make_cona_policy(const RunConfig& config);
std::unique_ptr<Policy> make_script_policy(const RunConfig& config, std::string_view script);

// What the policies share that Copus is compared with: the log of Goodput beside the decision of their own rule.
class BaselinePolicy : public Policy {
 public:
  explicit BaselinePolicy(RunConfig config) : config_(std::move(config)) {}

  Choice choose(const Situation& situation) final;

 protected:
  const RunConfig& config() const { return config_; }

  // Target and reason; the rest of the choice is filled in.
  virtual Choice decide(const Situation& situation) = 0;

  static Choice hold(const std::string& why);
  static Choice move(const Configuration& target, const std::string& why);
  // Holds, while no switch may follow the latest one yet.
  std::optional<Choice> dwell(const Situation& situation) const;

 private:
  RunConfig config_;
};

// The candidate in this configuration; null where there is none.
const Candidate* find_candidate(const std::vector<Candidate>& candidates, const Configuration& configuration);

using CandidateFilter = std::function<bool(const Candidate&)>;
CandidateFilter layout_is(const ParallelStrategy& strategy);

// Of the candidates that `allowed` lets through those whose batch is nearest by ratio, and of these the fastest; null
// where there is none. Of two batches equally near the smaller one.
const Candidate* fastest_near(const Situation& situation, double batch, const CandidateFilter& allowed);

}  // namespace copus
