#include "copus/performance/measured/prediction_range.h"

#include <cmath>

namespace copus {

namespace {

// Standard deviations of log(published step time / corrected prediction). If tensor-parallel groups span nodes, every
// layer waits for the network, and predictions are less certain.
constexpr double usual_deviation = 0.1;
constexpr double tensor_network_deviation = 0.25;
constexpr double deviation_per_doubling = 0.05;

// 95 % of a normal distribution lie within this many standard deviations of its mean.
constexpr double normal_quantile = 1.96;

}  // namespace

SecondsRange PredictionDoubt::range(double predicted_seconds) const {
  const double factor = std::exp(normal_quantile * relative_deviation);
  return {predicted_seconds / factor, (predicted_seconds + stall_seconds) * factor};
}

int64_t nodes_of(const ClusterDescription& cluster, int64_t ranks) {
  return (ranks + cluster.ranks_per_node - 1) / cluster.ranks_per_node;
}

PredictionDoubt doubt_of(const ClusterDescription& cluster, const TrainingSystem& system,
                         const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  PredictionDoubt doubt;
  doubt.relative_deviation =
      strategy.tensor_parallel > cluster.ranks_per_node ? tensor_network_deviation : usual_deviation;
  if (strategy.pipeline_parallel > 1 && nodes_of(cluster, strategy.world_size()) > 1) {
    doubt.stall_seconds = stalled_seconds(system, configuration);
  }
  return doubt;
}

double extrapolation_deviation(int64_t nodes, int64_t measured_nodes) {
  if (measured_nodes == 0 || nodes <= measured_nodes) return 0;
  return deviation_per_doubling * std::log2(static_cast<double>(nodes) / static_cast<double>(measured_nodes));
}

}  // namespace copus
