#include "copus/record/batch_worth.h"

namespace copus {

BatchWorth::BatchWorth(const JobConfig& config)
    : rule_{.calibration = config.noise_scale.calibration, .updates = config.noise_scale.critical_updates},
      reference_batch_(static_cast<double>(reference_batch_of(config))),
      alpha_(config.adapt.alpha) {}

double BatchWorth::critical_batch(double noise_scale, double consumed_samples) const {
  return copus::critical_batch(rule_, noise_scale, consumed_samples);
}

double BatchWorth::goodput(int64_t batch, double step_seconds, double critical_batch, double rate_factor) const {
  const auto samples = static_cast<double>(batch);
  return copus::goodput(samples / step_seconds, statistical_efficiency(samples, critical_batch, reference_batch_),
                        rate_factor, alpha_);
}

double BatchWorth::goodput_of_a_sample(int64_t batch, double critical_batch, double rate_factor) const {
  const auto samples = static_cast<double>(batch);
  return copus::goodput(1, statistical_efficiency(samples, critical_batch, reference_batch_), rate_factor, alpha_);
}

}  // namespace copus
