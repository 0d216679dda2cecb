#include "copus/simulate/gradient_norms.h"

#include <algorithm>
#include <cmath>

#include "copus/base/error.h"

namespace copus {

namespace {

// The small batches of a step: `groups` disjoint parts of the global batch.
struct SmallBatches {
  double groups, samples;
};

std::optional<SmallBatches> small_batches_of(const RunConfig& config, const Configuration& configuration,
                                             int64_t step) {
  const int64_t ranks = configuration.strategy.data_parallel;
  if (ranks > 1) {
    // Ranks that reduce each micro-batch separately measure the norm of their first micro-batch.
    const int64_t samples =
        configuration.strategy.cuts_gradients() ? configuration.micro_batch : configuration.global_batch / ranks;
    return SmallBatches{static_cast<double>(ranks), static_cast<double>(samples)};
  }
  if (configuration.num_microbatches() > 1) return SmallBatches{1, static_cast<double>(configuration.micro_batch)};
  const int64_t batch = configuration.global_batch;
  if (batch == 1 || step % config.noise_scale.split_interval != 0) return std::nullopt;
  return SmallBatches{1, static_cast<double>(std::max<int64_t>(1, batch / 8))};
}

// The error of a gradient or of a mean of gradients: its component along the true gradient G, and the squared length of
// its other components.
struct GaussianError {
  double along, squared_across;
};

}  // namespace

// Draws the norms with noise of variance S / D in each of D dimensions, S = tr(Sigma). The errors e_i of the gradients
// of n small batches of b samples are normal, with variance S / (b D) in each dimension. Three parts are independent:
// the mean e of the errors, the scatter of the e_i around e, and the error r of the remaining samples of the batch. The
// error of the whole batch is (1 - w) r + w e, with w = n b / B. The norms therefore depend only on the components of e
// and r along G, the lengths of their other parts, and the component of r along e:
//   A = |G|^2 + 2 G e + |e|^2 + scatter      C = |G|^2 + 2 G (w e + (1 - w) r) + |w e + (1 - w) r|^2
std::optional<NormObservation> draw_norms(const RunConfig& config, const Configuration& configuration, int64_t step,
                                          const GradientNoise& truth, const NormSpread& spread, Draws& draws) {
  const std::optional<SmallBatches> small = small_batches_of(config, configuration, step);
  if (!small) return std::nullopt;
  const auto batch = static_cast<double>(configuration.global_batch);
  const double together = small->groups * small->samples, dimensions = spread.dimensions;
  const double each = truth.trace / dimensions, length = std::sqrt(truth.squared_gradient);

  const double variance = each / together;
  const GaussianError first{std::sqrt(variance) * draws.normal(), variance * draws.chi_squared(dimensions - 1)};
  double scatter = 0;
  if (small->groups > 1) {
    scatter = variance * draws.chi_squared(dimensions * (small->groups - 1));
  }
  NormObservation norms;
  norms.small_batch = small->samples;
  norms.large_batch = batch;
  norms.small_squared_norm =
      truth.squared_gradient + 2 * length * first.along + first.along * first.along + first.squared_across + scatter;

  const double share = together / batch;
  double along = share * first.along, squared_across = share * share * first.squared_across;
  if (share < 1) {
    const double rest = 1 - share, deviation = std::sqrt(each / (batch - together));
    along += rest * deviation * draws.normal();
    const double beside_first = rest * deviation * draws.normal();
    squared_across += 2 * share * std::sqrt(first.squared_across) * beside_first + beside_first * beside_first +
                      rest * rest * deviation * deviation * draws.chi_squared(dimensions - 2);
  }
  norms.large_squared_norm = truth.squared_gradient + 2 * length * along + along * along + squared_across;

  double factor = std::exp(spread.step_deviation * draws.normal());
  if (draws.uniform() < spread.spike_probability) factor *= spread.spike_factor;
  norms.small_squared_norm *= factor;
  norms.large_squared_norm *= factor;
  return norms;
}

}  // namespace copus
