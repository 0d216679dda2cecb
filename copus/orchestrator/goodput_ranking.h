// The Goodput of every candidate over the interval of the noise scale: Copus decides by it, and all decisions are
// logged with it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/orchestrator/policy.h"
#include "copus/orchestrator/rate_rule.h"

namespace copus {

// Formats a fraction as "+12.3 %".
std::string percent(double fraction);
// Formats a fraction that has no direction, as "12.3 %".
std::string percent_of(double fraction);

// The candidate of the configuration that the run is in.
const Candidate& current_candidate(const Situation& situation);

// Explains why no switch may follow the latest one yet; empty where one may.
std::optional<std::string> dwell_reason(const JobConfig& config, const Situation& situation);

class GoodputRanking {
 public:
  // Relative gains of Goodput over the current configuration.
  struct Gains {
    double at_value = 0, at_low = 0, at_high = 0;
  };

  // Ranks by Goodput_alpha of adapt.alpha, with B_c as in record/batch_worth.h and the learning rate of each batch at
  // situation.rate_cap.
  GoodputRanking(const JobConfig& config, const NoiseBelief& noise, const Situation& situation);

  // The candidate of the configuration that the run is in.
  const Candidate& current() const { return current_; }
  // Gains of one of situation.candidates, which `candidate` refers to.
  const Gains& gains_of(const Candidate& candidate) const { return gains_[&candidate - candidates_.data()]; }
  double gain_of(const Configuration& configuration) const;
  // The worth of a sample in the candidate's batch over that of one in train.global_batch, at the end of phi's interval
  // where it is least.
  double least_efficiency_of(const Candidate& candidate) const {
    return least_efficiencies_[&candidate - candidates_.data()];
  }
  // The best candidates, at most five, best first; of equal ones the first.
  std::vector<RankedCandidate> best() const;

 private:
  const std::vector<Candidate>& candidates_;
  const Candidate& current_;
  double current_goodput_ = 0;
  std::vector<Gains> gains_;
  std::vector<double> least_efficiencies_;
};

}  // namespace copus
