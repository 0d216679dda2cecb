// Policies, and what they share: policy_goodput.cpp is Copus itself, policy_script.cpp repeats a run, and baselines/
// holds what Copus is compared with. make_policy chooses among them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/orchestrator/policy.h"

namespace copus {

// Values of phi by consumed samples, in ascending order, at least one; linear in between, constant beyond the ends.
using NoiseTrace = std::vector<std::pair<double, double>>;
// Parses a trace. Throws UserError naming the line. Exposed for the tests of its messages.
NoiseTrace parse_noise_trace(std::string_view text, const std::string& source);

// Makes the policy of Copus; with `truth` the oracle.
std::unique_ptr<Policy> make_goodput_policy(const JobConfig& config, std::optional<NoiseTrace> truth);
// Makes one of the policies that set the batch by what is measured, or the one that never moves, by
// config.adapt.policy.
std::unique_ptr<Policy> make_batch_policy(const JobConfig& config);
// Makes one of the policies whose batches are a schedule, by config.adapt.policy.
std::unique_ptr<Policy> make_schedule_policy(const JobConfig& config);
std::unique_ptr<Policy> make_cona_policy(const JobConfig& config);
std::unique_ptr<Policy> make_paper_policy(const JobConfig& config);
std::unique_ptr<Policy> make_script_policy(const JobConfig& config, std::string_view script);

using CandidateFilter = std::function<bool(const Candidate&)>;
CandidateFilter layout_is(const ParallelStrategy& strategy);

// The base of the policies that Copus is compared with and that decide by something else than Goodput: logs it beside
// the decision of their own rule.
class BaselinePolicy : public Policy {
 public:
  explicit BaselinePolicy(JobConfig config) : config_(std::move(config)) {}

  Choice choose(const Situation& situation) final;

 protected:
  const JobConfig& config() const { return config_; }

  // Returns target and reason; the rest of the choice is filled in.
  virtual Choice decide(const Situation& situation) = 0;

  static Choice hold(const std::string& why);
  static Choice move(const Configuration& target, const std::string& why);
  // Chooses `batch`, or the nearest to it, in the current layout or among those that `layout` lets through; `why`
  // explains the batch in words.
  static Choice to_batch(const Situation& situation, double batch, const std::string& why);
  static Choice to_batch(const Situation& situation, double batch, const CandidateFilter& layout,
                         const std::string& why);
  // Returns B_c at the believed noise scale, or at its lower bound.
  double critical_batch_in(const Situation& situation) const;
  // Returns a choice to hold while no switch may follow the latest one yet; empty afterwards.
  std::optional<Choice> dwell(const Situation& situation) const;

 private:
  JobConfig config_;
};

// Finds the candidate in this configuration; null where there is none.
const Candidate* find_candidate(const std::vector<Candidate>& candidates, const Configuration& configuration);

// Finds the fastest of the candidates that `allowed` lets through and whose batch is nearest by ratio; null where there
// is none. If two batches are equally near, the smaller one is taken.
const Candidate* fastest_near(const Situation& situation, double batch, const CandidateFilter& allowed);

}  // namespace copus
