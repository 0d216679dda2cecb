#include "copus/performance/modelled_truth.h"

#include <cmath>
#include <string_view>

#include "copus/base/numbers/philox.h"

namespace copus {

double LayoutErrors::factor(const Configuration& configuration) const {
  if (size == 0) return 1;
  const auto deviate = [&](std::string_view name, int64_t value) {
    return static_cast<double>(standard_normal(stream_key(seed, name), static_cast<uint64_t>(value)));
  };
  double sum = 0;
  for (const MeshAxisInfo& axis : mesh_axes) sum += deviate(axis.key, configuration.strategy.*axis.degree);
  return std::exp(size * (sum + deviate("micro_batch", configuration.micro_batch)) / 2);
}

ModelledTruth::ModelledTruth(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                             const TrainingSystem& system, const LayoutErrors& errors)
    : cluster_(cluster),
      errors_(errors),
      steps_(model, sequence_length, cluster, system),
      memory_(model, sequence_length, system),
      relayouts_(model, sequence_length, cluster, system) {}

double ModelledTruth::step_seconds(const Configuration& configuration) {
  const auto known = step_seconds_.find(configuration);
  if (known != step_seconds_.end()) return known->second;
  const double seconds = steps_.predict(configuration).total() * errors_.factor(configuration);
  return step_seconds_.emplace(configuration, seconds).first->second;
}

std::optional<std::string> ModelledTruth::why_too_large(const Configuration& configuration) {
  return out_of_memory_reason(memory_.predict(configuration),
                              memory_of_rank(cluster_, configuration.strategy.world_size()));
}

}  // namespace copus
