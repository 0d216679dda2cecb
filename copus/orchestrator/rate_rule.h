// How the learning rate follows batch and critical batch in a run: the rule that the configuration and the policy give,
// and the belief about the noise scale that its cap follows.
#pragma once

#include <limits>
#include <string>

#include "copus/config/job_config.h"
#include "copus/orchestrator/observation.h"
#include "copus/statistics/learning_rate_scaling.h"

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

// The rule by which the run's learning rate follows its batch.
RateRule rate_rule_of(const JobConfig& config);

// The cap of the learning rate with which a run begins in a batch of so many samples. Nothing is known of the critical
// batch yet, so the rate is the one that the rule gives for this batch, and no larger batch gets a larger one.
double initial_rate_cap(const JobConfig& config, int64_t batch);

// The factor on the learning rate with which a run begins in a batch of so many samples.
double initial_rate_factor(const JobConfig& config, int64_t batch);

// The cap that the critical batch asks for after so many samples, in a run that has counted with `cap`. A lower bound
// may raise it and never lowers it, and where nothing is known it stays.
double rate_cap_by_noise(const JobConfig& config, double cap, const NoiseBelief& noise, double consumed_samples);

// The cap to count with from a decision on: it follows that of rate_cap_by_noise as cap_towards allows.
double follow_critical_batch(const JobConfig& config, int64_t batch, double cap, const NoiseBelief& noise,
                             double consumed_samples);

}  // namespace copus
