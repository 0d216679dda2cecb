#include "copus/statistics/gradient_noise.h"

#include "copus/base/error.h"

namespace copus {

GradientNoise estimate(const NormObservation& observation) {
  const auto& [small_batch, small_squared_norm, large_batch, large_squared_norm] = observation;
  COPUS_CHECK(0 < small_batch && small_batch < large_batch, small_batch, " and ", large_batch);
  const double difference = large_batch - small_batch;
  return {(large_batch * large_squared_norm - small_batch * small_squared_norm) / difference,
          (small_squared_norm - large_squared_norm) * small_batch * large_batch / difference};
}

GradientNoise estimate_from_samples(double n, double batch, double mean_squared_norm, double squared_norm_of_mean) {
  return estimate({batch, mean_squared_norm, n * batch, squared_norm_of_mean});
}

GradientNoise variance_of_estimate(double n, double batch, double gradient_covariance_gradient,
                                   double trace_of_squared_covariance) {
  COPUS_CHECK(n >= 2 && batch > 0, n, " gradients of ", batch);
  const double all = n * batch;
  return {4 * gradient_covariance_gradient / all + 2 * trace_of_squared_covariance * n / (all * all * (n - 1)),
          2 * trace_of_squared_covariance / (n - 1)};
}

}  // namespace copus
