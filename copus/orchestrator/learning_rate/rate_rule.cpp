#include "copus/orchestrator/learning_rate/rate_rule.h"

#include <algorithm>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/record/batch_worth.h"

namespace copus {

namespace {

double exponent_of(BatchScaling scaling) {
  switch (scaling) {
    case BatchScaling::square_root:
      return 0.5;
    case BatchScaling::linear:
      return 1;
    case BatchScaling::none:
      return 0;
  }
  fail_check("a rule of scaling", __FILE__, __LINE__, concat(to_string(scaling)));
}

}  // namespace

NoiseBelief believed_noise(const Observation& observation) {
  NoiseBelief noise;
  noise.low = observation.noise_scale_low.value_or(0);
  if (observation.noise_scale && observation.noise_scale_high) {
    noise.value = *observation.noise_scale;
    noise.high = *observation.noise_scale_high;
  } else {
    noise.value = noise.low;
  }
  return noise;
}

std::string describe(const NoiseBelief& noise) {
  const std::string low = format_number("%.3g", noise.low);
  if (noise.is_bounded()) return concat("noise scale ", low, " .. ", format_number("%.3g", noise.high));
  if (noise.low > 0) return concat("noise scale at least ", low, " (|G|^2 is not significant)");
  return "noise scale not measured";
}

RateRule rate_rule_of(const JobConfig& config) {
  return {.exponent = exponent_of(config.optimizer.batch_scaling),
          .reference_batch = static_cast<double>(reference_batch_of(config)),
          .is_capped = config.adapt.policy != PolicyKind::copus_paper};
}

double initial_rate_cap(const JobConfig& config, int64_t batch) {
  return static_cast<double>(std::max(batch, reference_batch_of(config)));
}

double initial_rate_factor(const JobConfig& config, int64_t batch) {
  return rate_factor(rate_rule_of(config), static_cast<double>(batch), initial_rate_cap(config, batch));
}

double rate_cap_by_noise(const JobConfig& config, double cap, const NoiseBelief& noise, double consumed_samples) {
  const BatchWorth worth(config);
  const double believed = worth.critical_batch(noise.value, consumed_samples);
  const double at_most = worth.critical_batch(noise.high, consumed_samples);
  return noise.is_bounded() ? believed : std::min(std::max(cap, believed), at_most);
}

double follow_critical_batch(const JobConfig& config, int64_t batch, double cap, const NoiseBelief& noise,
                             double consumed_samples) {
  return cap_towards(rate_rule_of(config), static_cast<double>(batch), cap,
                     rate_cap_by_noise(config, cap, noise, consumed_samples));
}

}  // namespace copus
