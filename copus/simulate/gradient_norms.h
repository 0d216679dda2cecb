// Squared norms of gradients as the steps of a training would show them, drawn from the distribution that noise with an
// effective number of dimensions gives them, without any gradient.
#pragma once

#include <cstdint>
#include <optional>

#include "copus/config/run_config.h"
#include "copus/simulate/draws.h"
#include "copus/statistics/gradient_noise.h"

namespace copus {

// How widely the norms of a training spread.
struct NormSpread {
  double dimensions = 1000;      // tr(Sigma)^2 / tr(Sigma^2), at least 32: few make every norm noisier
  double step_deviation = 0;     // standard deviation of the logarithm of a factor that a step's norms share
  double spike_probability = 0;  // that a step's norms are `spike_factor` times as large
  double spike_factor = 1;
};

// Draws the norms of a step in `configuration` at a noise scale and |G|^2: of the same small batches that a run
// measures (train's plan_probe): every data-parallel rank's share; on one rank the first micro-batch, or an eighth of
// the step, every noise_scale.split_interval-th step, where the step is one micro-batch. Empty where the step shows
// nothing.
std::optional<NormObservation> draw_norms(const RunConfig& config, const Configuration& configuration, int64_t step,
                                          const GradientNoise& truth, const NormSpread& spread, Draws& draws);

}  // namespace copus
