// Computes the critical batch and the Goodput of a batch, according to the run's configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/statistics/efficiency.h"
#include "copus/statistics/efficiency_belief.h"

namespace copus {

// The measured critical batches of noise_scale.calibration, as evidence for a law.
std::vector<CriticalBatchEvidence> evidence_of(const NoiseScaleConfig& config);

class BatchWorth {
 public:
  explicit BatchWorth(const JobConfig& config);

  // Returns the critical batch, in samples, at this noise scale (in samples) after this number of samples. With three
  // or more measured critical batches, it follows a law that is fitted to them (expected_law). With one or two, it is
  // the noise scale times a factor that follows from them; with none, this factor is noise_scale.calibration.
  // noise_scale.critical_updates bounds the result in all cases.
  double critical_batch(double noise_scale, double consumed_samples) const;

  // Returns the Goodput at the run's adapt.alpha, in samples/s. These are samples of the run's reference batch: how
  // many of them would bring the same progress per second.
  double goodput(int64_t batch, double step_seconds, double critical_batch, double rate_factor) const;
  // The same for a throughput of one sample/s.
  double goodput_of_a_sample(int64_t batch, double critical_batch, double rate_factor) const;

 private:
  CriticalBatchRule rule_;
  std::optional<EfficiencyLaw> law_;  // replaces the calibration factor if it is set
  double tokens_of_sample_, reference_batch_, alpha_;
};

}  // namespace copus
