#include "copus/record/batch_worth.h"

#include <algorithm>
#include <cmath>

namespace copus {

namespace {

// Bounds, in samples: the interval of the noise scale at first reaches from 0 to infinity, which have no logarithm.
constexpr double smallest_noise_scale = 1e-3, largest_noise_scale = 1e9;

// With fewer measurements, the law's growth would be only its prior's. In simulated runs this was worse than c phi.
// Branches that say hardly more than the prior, whose deviation of ln B_c is 2.1, do not count.
constexpr int64_t least_measurements_of_a_law = 3;
constexpr double largest_deviation = 1;

std::optional<EfficiencyLaw> law_of(const NoiseScaleConfig& config) {
  const auto tells = [](const MeasuredCriticalBatch& at) { return at.deviation <= largest_deviation; };
  if (std::ranges::count_if(config.critical_batches, tells) < least_measurements_of_a_law) return std::nullopt;
  return expected_law(evidence_of(config));
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

double BatchWorth::critical_batch(double noise_scale, double consumed_samples) const {
  if (!law_) return copus::critical_batch(rule_, noise_scale, consumed_samples);
  const double noise = std::clamp(noise_scale, smallest_noise_scale, largest_noise_scale);
  const TrainingMoment moment{std::max(1.0, consumed_samples) * tokens_of_sample_, noise * tokens_of_sample_};
  const double by_law = law_->critical_batch(moment) / tokens_of_sample_;
  return copus::critical_batch({.calibration = 1, .updates = rule_.updates}, by_law, consumed_samples);
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
