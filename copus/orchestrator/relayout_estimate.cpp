#include "copus/orchestrator/relayout_estimate.h"

#include "copus/orchestrator/step_time_learner.h"

namespace copus {

namespace {

// What one core copies, where links are not described: ranks then share a machine.
constexpr double copied_bytes_per_second = 4e9;

}  // namespace

double estimated_relayout_seconds(const RunConfig& config) {
  const TrainingSystem system = training_system_of(config);
  // Master weights and moments; compute weights are derived from them.
  const double bytes_per_parameter = system.weight_bytes == 4 ? 4 + system.optimizer_bytes : system.optimizer_bytes;
  const double bytes = bytes_per_parameter * static_cast<double>(count_parameters(config.model));
  const ClusterDescription& cluster = config.cluster.description;
  const bool is_on_one_node = config.parallel.world_size() <= cluster.ranks_per_node;
  const double link = (is_on_one_node ? cluster.within_node : cluster.between_nodes).bytes_per_second;
  const bool is_link_shown = config.cluster.clock != ClockKind::real && link > 0;
  return bytes / (is_link_shown ? link : copied_bytes_per_second);
}

}  // namespace copus
