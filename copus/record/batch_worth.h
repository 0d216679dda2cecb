// What a batch is worth in a run: critical batch and Goodput, by the run's configuration.
#pragma once

#include <cstdint>

#include "copus/config/job_config.h"
#include "copus/statistics/efficiency.h"

namespace copus {

class BatchWorth {
 public:
  explicit BatchWorth(const JobConfig& config);

  // The critical batch, in samples, at this noise scale, in samples, after so many samples.
  double critical_batch(double noise_scale, double consumed_samples) const;

  // The Goodput, in samples/s that each count as one in a batch of the run's reference batch, at the run's adapt.alpha.
  double goodput(int64_t batch, double step_seconds, double critical_batch, double rate_factor) const;
  // The same for a throughput of one sample/s.
  double goodput_of_a_sample(int64_t batch, double critical_batch, double rate_factor) const;

 private:
  CriticalBatchRule rule_;
  double reference_batch_, alpha_;
};

}  // namespace copus
