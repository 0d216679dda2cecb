// Plans which gradients of smaller batches a step can measure. The norms of such a gradient and of the whole gradient
// give the gradient noise scale. The result is the same on all ranks and after a resume.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"

namespace copus {

// The gradient that serves as a step's small batch.
enum class ProbeSource {
  none,
  prefix,  // main gradients after the first micro-batch (one data-parallel rank)
  rank,    // gradients of each data-parallel rank before they are reduced (several ranks)
  // Gradients of each data-parallel rank's first micro-batch before they are reduced (several ranks with ZeRO-2 or 3,
  // which reduce each micro-batch separately).
  prefix_of_each_rank,
};

struct ProbePlan {
  ProbeSource source = ProbeSource::none;
  int64_t small_batch = 0;             // samples; 0: no measurement
  std::vector<int64_t> micro_batches;  // samples of each micro-batch of a data-parallel rank
  bool measures_dual_norms = false;
};

// Returns a data-parallel rank's number of samples per step.
int64_t samples_per_rank(const Configuration& configuration);

// Whether step `step` (from 1) measures noise in dual norms.
bool measures_dual_norms(const RunConfig& config, int64_t step);

// Plans the measurement of step `step` (from 1) in a configuration. If the whole step is one micro-batch, it is split
// in two in every noise_scale.split_interval-th step and in steps that measure noise in dual norms. Without `measure`
// the step measures nothing and is not split. `config` gives the intervals and the sequence length.
ProbePlan plan_probe(const RunConfig& config, const Configuration& configuration, int64_t step, bool measure);

// Explains why no step in this configuration can measure the noise scale, and what to change; empty if some can.
std::optional<std::string> why_noise_is_not_measured(const RunConfig& config, const Configuration& configuration);

}  // namespace copus
