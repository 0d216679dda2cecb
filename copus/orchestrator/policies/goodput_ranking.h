// Computes the Goodput of every candidate, at the noise scale and at both ends of its interval. Copus decides by this
// ranking, and every decision logs it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/orchestrator/learning_rate/rate_rule.h"
#include "copus/orchestrator/policies/policy.h"

namespace copus {

// Formats a fraction as "+12.3 %".
std::string percent(double fraction);
// Formats a fraction that has no direction, as "12.3 %".
std::string percent_of(double fraction);

// The candidate of the configuration that the run is in.
const Candidate& current_candidate(const Situation& situation);

// Explains why it is too early for another switch; empty if it is not.
std::optional<std::string> dwell_reason(const JobConfig& config, const Situation& situation);

class GoodputRanking {
 public:
  // Relative gains of Goodput over the current configuration.
  struct Gains {
    double at_value = 0, at_low = 0, at_high = 0;
  };

  // Ranks candidates by Goodput_alpha with adapt.alpha. record/batch_worth.h defines B_c. For each batch, the learning
  // rate is the rate at situation.rate_cap.
  GoodputRanking(const JobConfig& config, const NoiseBelief& noise, const Situation& situation);

  // The candidate of the configuration that the run is in.
  const Candidate& current() const { return current_; }
  // Gains of `candidate`, which must refer to an element of situation.candidates.
  const Gains& gains_of(const Candidate& candidate) const { return gains_[&candidate - candidates_.data()]; }
  double gain_of(const Configuration& configuration) const;
  // Returns the statistical efficiency of the candidate's batch relative to train.global_batch: the smallest of the
  // values at phi and at both ends of its interval.
  double least_efficiency_of(const Candidate& candidate) const {
    return least_efficiencies_[&candidate - candidates_.data()];
  }
  // The best candidates, at most five, best first; ties keep the order of the candidates.
  std::vector<RankedCandidate> best() const;

 private:
  const std::vector<Candidate>& candidates_;
  const Candidate& current_;
  double current_goodput_ = 0;
  std::vector<Gains> gains_;
  std::vector<double> least_efficiencies_;
};

}  // namespace copus
