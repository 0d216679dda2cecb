#include "copus/record/batch_worth.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace copus {

namespace {

// A belief about the noise scale first reaches from 0 to infinity, where a law has no logarithm.
constexpr double smallest_noise_scale = 1e-3, largest_noise_scale = 1e9;  // samples

// Fewer measurements leave the law's growth to its prior, which was worse than c phi in simulated runs.
constexpr size_t least_measurements_of_a_law = 3;

// The quantiles of a standard normal distribution at 1/40, 3/40, ..., 39/40.
constexpr std::array<double, 20> standard_draws = {
    -1.959964, -1.439531, -1.150349, -0.934589, -0.755415, -0.597760, -0.453762, -0.318639, -0.189118, -0.062707,
    0.062707,  0.189118,  0.318639,  0.453762,  0.597760,  0.755415,  0.934589,  1.150349,  1.439531,  1.959964};

std::optional<ExpectedLaw> law_of(const NoiseScaleConfig& config) {
  if (config.critical_batches.size() < least_measurements_of_a_law) return std::nullopt;
  return ExpectedLaw(evidence_of(config));
}

// Returns c: the geometric mean of the measured values, weighted by their precision, or else the given value.
double calibration_of(const NoiseScaleConfig& config) {
  if (config.critical_batches.empty()) return config.calibration;
  double sum = 0, weights = 0;
  for (const MeasuredCriticalBatch& at : config.critical_batches) {
    const double weight = 1 / (at.deviation * at.deviation);
    sum += weight * std::log(at.critical_batch / at.noise_scale);
    weights += weight;
  }
  return std::exp(sum / weights);
}

}  // namespace

std::vector<CriticalBatchEvidence> evidence_of(const NoiseScaleConfig& config) {
  std::vector<CriticalBatchEvidence> evidence;
  evidence.reserve(config.critical_batches.size());
  for (const MeasuredCriticalBatch& at : config.critical_batches) {
    evidence.push_back({{at.tokens, at.noise_scale}, at.critical_batch, at.deviation});
  }
  return evidence;
}

BatchWorth::BatchWorth(const JobConfig& config)
    : rule_{.calibration = calibration_of(config.noise_scale), .updates = config.noise_scale.critical_updates},
      law_(law_of(config.noise_scale)),
      tokens_of_sample_(static_cast<double>(config.train.sequence_length)),
      reference_batch_(static_cast<double>(reference_batch_of(config))),
      alpha_(config.adapt.alpha) {}

TrainingMoment BatchWorth::moment_of(double noise_scale, double consumed_samples) const {
  const double noise = std::clamp(noise_scale, smallest_noise_scale, largest_noise_scale);
  return {std::max(1.0, consumed_samples) * tokens_of_sample_, noise * tokens_of_sample_};
}

double BatchWorth::critical_batch(double noise_scale, double consumed_samples) const {
  if (!law_) return copus::critical_batch(rule_, noise_scale, consumed_samples);
  const double by_law = law_->law().critical_batch(moment_of(noise_scale, consumed_samples)) / tokens_of_sample_;
  return copus::critical_batch({.calibration = 1, .updates = rule_.updates}, by_law, consumed_samples);
}

std::vector<double> BatchWorth::draw_critical_batches(double noise_scale, double noise_deviation,
                                                      double consumed_samples) const {
  if (!law_) return {};
  const TrainingMoment moment = moment_of(noise_scale, consumed_samples);
  const double by_law = law_->law().critical_batch(moment) / tokens_of_sample_;
  const double deviation = std::hypot(law_->deviation(moment), law_->law().by_noise * noise_deviation);
  std::vector<double> draws;
  draws.reserve(standard_draws.size());
  for (const double draw : standard_draws) {
    draws.push_back(copus::critical_batch({.calibration = 1, .updates = rule_.updates},
                                          by_law * std::exp(deviation * draw), consumed_samples));
  }
  return draws;
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
