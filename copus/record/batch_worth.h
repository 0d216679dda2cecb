// What a batch is worth in a run: critical batch and Goodput, according to the run's configuration.
#pragma once

#include <cstdint>

#include "copus/config/job_config.h"
#include "copus/statistics/efficiency.h"

namespace copus {

class BatchWorth {
 public:
  explicit BatchWorth(const JobConfig& config);

  // Returns the critical batch, in samples, for a noise scale, in samples, after `consumed_samples`.
  double critical_batch(double noise_scale, double consumed_samples) const;

  // Returns the Goodput at the run's adapt.alpha, in samples/s, where a sample in the run's reference batch counts as
  // one.
  double goodput(int64_t batch, double step_seconds, double critical_batch, double rate_factor) const;
  // The same for a throughput of one sample/s.
  double goodput_of_a_sample(int64_t batch, double critical_batch, double rate_factor) const;

 private:
  CriticalBatchRule rule_;
  double reference_batch_, alpha_;
};

}  // namespace copus
