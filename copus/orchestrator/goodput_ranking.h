// The Goodput of every candidate over the interval of the noise scale: Copus decides by it, and all decisions are
// logged with it.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/orchestrator/policy.h"

namespace copus {

// The belief about phi, in samples. While |G|^2 is not significant there is no upper end, and `value` is the lower
// bound; before anything is measured that is 0.
struct NoiseBelief {
  double value = 0;
  double low = 0;
  double high = std::numeric_limits<double>::infinity();

  bool is_bounded() const { return high < std::numeric_limits<double>::infinity(); }
};

NoiseBelief believed_noise(const Observation& observation);

// Describes the belief: "noise scale 12 .. 40", "noise scale at least 12 (|G|^2 is not significant)", "noise scale not
// measured".
std::string describe(const NoiseBelief& noise);
// Formats a fraction as "+12.3 %".
std::string percent(double fraction);

// The candidate of the configuration that the run is in.
const Candidate& current_candidate(const Situation& situation);

// Explains why no switch may follow the latest one yet; empty where one may.
std::optional<std::string> dwell_reason(const RunConfig& config, const Situation& situation);

class GoodputRanking {
 public:
  // Relative gains of Goodput over the current configuration.
  struct Gains {
    double at_value = 0, at_low = 0, at_high = 0;
  };

  // Ranks by Goodput_alpha of adapt.alpha, B_c = noise_scale.calibration * phi, B_ref = train.global_batch.
  GoodputRanking(const RunConfig& config, const NoiseBelief& noise, const Situation& situation);

  double critical_batch() const { return critical_batch_; }
  // Gains of one of situation.candidates, which `candidate` refers to.
  const Gains& gains_of(const Candidate& candidate) const { return gains_[&candidate - candidates_.data()]; }
  double gain_of(const Configuration& configuration) const;
  // The best candidates, at most five, best first; of equal ones the first.
  std::vector<RankedCandidate> best() const;

 private:
  const std::vector<Candidate>& candidates_;
  double critical_batch_;
  double current_goodput_ = 0;
  std::vector<Gains> gains_;
};

}  // namespace copus
