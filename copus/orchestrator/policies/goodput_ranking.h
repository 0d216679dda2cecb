// Computes the Goodput of every candidate over the interval of the noise scale. Copus decides by this ranking, and
// every decision logs it.
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

  // Whether the critical batch follows a law that was fitted to measurements. If so, a candidate in another batch has
  // as many equally likely gains as there are draws of the critical batch (BatchWorth). Otherwise every candidate has
  // one gain to judge it by: the smallest of gains_of.
  bool is_drawn() const { return !drawn_.empty(); }
  // Calls visit(gain) for each of the candidate's equally likely gains.
  template <class Visit>
  void for_each_gain(const Candidate& candidate, const Visit& visit) const {
    if (!is_drawn()) return visit(least_gain_of(candidate));
    const double speed = candidate.throughput() / current_.throughput();
    for (const double ratio : drawn_of(candidate).ratios) visit(speed * ratio - 1);
  }
  // The mean of these gains and of their squares.
  struct Moments {
    double mean = 0, mean_square = 0;
  };
  Moments moments_of(const Candidate& candidate) const;

  // Returns the statistical efficiency of the candidate's batch relative to train.global_batch: the smallest of the
  // values at phi and at both ends of its interval.
  double least_efficiency_of(const Candidate& candidate) const {
    return least_efficiencies_[&candidate - candidates_.data()];
  }
  // The best candidates, at most five, best first; ties keep the order of the candidates.
  std::vector<RankedCandidate> best() const;

 private:
  // The worth of a sample in this batch over its worth in the current batch, for each draw of the critical batch.
  struct DrawnRatios {
    int64_t batch = 0;
    std::vector<double> ratios;
    double mean = 0, mean_square = 0;
  };

  double least_gain_of(const Candidate& candidate) const;
  const DrawnRatios& drawn_of(const Candidate& candidate) const;

  const std::vector<Candidate>& candidates_;
  const Candidate& current_;
  double current_goodput_ = 0;
  std::vector<Gains> gains_;
  std::vector<double> least_efficiencies_;
  std::vector<DrawnRatios> drawn_;  // one per batch; empty if the critical batch is not drawn
};

}  // namespace copus
