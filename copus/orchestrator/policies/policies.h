// Declares the policies and their common parts. policy_goodput.cpp is the policy of Copus, policy_script.cpp repeats a
// run, and baselines/ contains the policies with which Copus is compared. make_policy makes any of them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/orchestrator/policies/policy.h"

namespace copus {

// Values of phi by consumed samples, ascending, at least one. phi is linear between them, and constant beyond the ends.
using NoiseTrace = std::vector<std::pair<double, double>>;
// Parses a trace. Throws UserError naming the line. Exposed for the tests of its messages.
NoiseTrace parse_noise_trace(std::string_view text, const std::string& source);

// Makes the policy of Copus, or the oracle if `truth` gives the true noise scale.
std::unique_ptr<Policy> make_goodput_policy(const JobConfig& config, std::optional<NoiseTrace> truth);
// Makes the policy that config.adapt.policy names. The policy must set the batch by measurements, or never move.
std::unique_ptr<Policy> make_batch_policy(const JobConfig& config);
// Makes the policy that config.adapt.policy names. Its batches must follow a schedule.
std::unique_ptr<Policy> make_schedule_policy(const JobConfig& config);
std::unique_ptr<Policy> make_cona_policy(const JobConfig& config);
std::unique_ptr<Policy> make_paper_policy(const JobConfig& config);
std::unique_ptr<Policy> make_script_policy(const JobConfig& config, std::string_view script);

using CandidateFilter = std::function<bool(const Candidate&)>;
CandidateFilter layout_is(const ParallelStrategy& strategy);

// Base class of the policies with which Copus is compared. They do not decide by Goodput; for the log, this class adds
// the ranking by Goodput to their decisions.
class BaselinePolicy : public Policy {
 public:
  explicit BaselinePolicy(JobConfig config) : config_(std::move(config)) {}

  Choice choose(const Situation& situation) final;

 protected:
  const JobConfig& config() const { return config_; }

  // Returns target and reason; `choose` fills in the rest.
  virtual Choice decide(const Situation& situation) = 0;

  static Choice hold(const std::string& why);
  static Choice move(const Configuration& target, const std::string& why);
  // Chooses `batch`, or the candidate batch nearest to it, in the current layout or in a layout that `layout` accepts.
  // `why` explains the batch in words.
  static Choice to_batch(const Situation& situation, double batch, const std::string& why);
  static Choice to_batch(const Situation& situation, double batch, const CandidateFilter& layout,
                         const std::string& why);
  // Returns B_c at the measured noise scale, or at its lower bound if that alone is known.
  double critical_batch_in(const Situation& situation) const;
  // Returns a choice to hold if it is too early for another switch; else empty.
  std::optional<Choice> dwell(const Situation& situation) const;

 private:
  JobConfig config_;
};

// Finds the candidate in this configuration; null if there is none.
const Candidate* find_candidate(const std::vector<Candidate>& candidates, const Configuration& configuration);

// Returns the fastest of the accepted candidates that have the batch nearest to `batch` by ratio; null if `allowed`
// accepts none. If two batches are equally near, the smaller batch is taken.
const Candidate* fastest_near(const Situation& situation, double batch, const CandidateFilter& allowed);

}  // namespace copus
