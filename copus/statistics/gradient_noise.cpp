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

}  // namespace copus
