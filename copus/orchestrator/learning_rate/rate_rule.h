// Determines how the learning rate follows the batch. Configuration and policy set the rule. The rate does not grow
// beyond the critical batch, which follows from the estimate of the noise scale.
#pragma once

#include <limits>
#include <string>

#include "copus/config/job_config.h"
#include "copus/orchestrator/observation.h"
#include "copus/statistics/learning_rate_scaling.h"

namespace copus {

// The estimate of the gradient noise scale phi = tr(Sigma) / |G|^2, in samples, with its interval `low` .. `high`. G is
// the mean gradient, and Sigma the covariance of the samples' gradients. While |G|^2 is not significantly above 0, phi
// has no upper bound, and `value` is the lower bound. Before the first measurement `value` is 0.
struct NoiseBelief {
  double value = 0;
  double low = 0;
  double high = std::numeric_limits<double>::infinity();

  bool is_bounded() const { return high < std::numeric_limits<double>::infinity(); }
};

NoiseBelief believed_noise(const Observation& observation);

// Describes the estimate: "noise scale 12 .. 40", "noise scale at least 12 (|G|^2 is not significant)", "noise scale
// not measured".
std::string describe(const NoiseBelief& noise);

// The rule by which the run's learning rate follows its batch.
RateRule rate_rule_of(const JobConfig& config);

// Returns the batch above which the learning rate no longer grows, for a run that begins in `batch`. The critical batch
// is still unknown, so this is `batch` or, if larger, the reference batch. The run thus gets the rule's full rate for
// `batch`, and larger batches get no larger rate.
double initial_rate_cap(const JobConfig& config, int64_t batch);

// The factor on the learning rate with which a run begins in this batch.
double initial_rate_factor(const JobConfig& config, int64_t batch);

// Returns the cap that the critical batch implies after this many samples, for a run whose cap is `cap`. If only a
// lower bound of phi is known, phi may raise the cap but never lowers it. noise_scale.critical_updates bounds the cap
// in any case.
double rate_cap_by_noise(const JobConfig& config, double cap, const NoiseBelief& noise, double consumed_samples);

// The cap to use from a decision on. It moves towards the cap of rate_cap_by_noise, as far as cap_towards allows.
double follow_critical_batch(const JobConfig& config, int64_t batch, double cap, const NoiseBelief& noise,
                             double consumed_samples);

}  // namespace copus
