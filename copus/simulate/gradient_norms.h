// Draws the squared norms of gradients that a run would measure, without computing gradients. The noise is Gaussian
// with an effective number of dimensions.
#pragma once

#include <cstdint>
#include <optional>

#include "copus/config/run_config.h"
#include "copus/simulate/draws.h"
#include "copus/statistics/gradient_noise.h"

namespace copus {

// The spread of a run's norms.
struct NormSpread {
  double dimensions = 1000;      // tr(Sigma)^2 / tr(Sigma^2), at least 32; fewer make norms noisier
  double step_deviation = 0;     // standard deviation of the logarithm of a factor common to a step's norms
  double spike_probability = 0;  // of a step whose norms are `spike_factor` times as large
  double spike_factor = 1;
};

// Draws the norms of a step in `configuration`, given the true noise scale and |G|^2. As in a run (plan_probe in
// train), the small batches are each data-parallel rank's part of the batch or, on one rank, the first micro-batch. If
// a step has a single micro-batch, only every noise_scale.split_interval-th step is measured, with an eighth of the
// step as the small batch. Returns nothing if the step measures nothing.
std::optional<NormObservation> draw_norms(const RunConfig& config, const Configuration& configuration, int64_t step,
                                          const GradientNoise& truth, const NormSpread& spread, Draws& draws);

}  // namespace copus
