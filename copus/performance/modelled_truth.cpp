#include "copus/performance/modelled_truth.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "copus/base/philox.h"
#include "copus/placement/relayout_plan.h"

namespace copus {

double LayoutErrors::factor(const Configuration& configuration) const {
  if (size == 0) return 1;
  const auto deviate = [&](std::string_view name, int64_t value) {
    return static_cast<double>(standard_normal(stream_key(seed, name), static_cast<uint64_t>(value)));
  };
  const ParallelStrategy& strategy = configuration.strategy;
  const double sum =
      deviate("data_parallel", strategy.data_parallel) + deviate("tensor_parallel", strategy.tensor_parallel) +
      deviate("pipeline_parallel", strategy.pipeline_parallel) + deviate("micro_batch", configuration.micro_batch);
  return std::exp(size * sum / 2);
}

ModelledTruth::ModelledTruth(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                             const TrainingSystem& system, const LayoutErrors& errors)
    : model_(model),
      sequence_length_(sequence_length),
      cluster_(cluster),
      system_(system),
      errors_(errors),
      steps_(model, sequence_length, cluster, system),
      memory_(model, sequence_length, system) {}

double ModelledTruth::step_seconds(const Configuration& configuration) {
  const auto known = step_seconds_.find(configuration);
  if (known != step_seconds_.end()) return known->second;
  const double seconds = steps_.predict(configuration).total() * errors_.factor(configuration);
  return step_seconds_.emplace(configuration, seconds).first->second;
}

double ModelledTruth::relayout_seconds(const ParallelStrategy& from, const ParallelStrategy& to) {
  const auto known = relayout_seconds_.find({from, to});
  if (known != relayout_seconds_.end()) return known->second;
  const double seconds = to.world_size() < many_ranks ? planned_seconds(from, to) : receiving_seconds(to);
  return relayout_seconds_.emplace(std::pair(from, to), seconds).first->second;
}

double ModelledTruth::planned_seconds(const ParallelStrategy& from, const ParallelStrategy& to) const {
  const RelayoutRequest request{.model = model_,
                                .sequence_length = sequence_length_,
                                .from = from,
                                .to = to,
                                .weights_are_master = system_.weight_bytes == 4,
                                .ranks_per_node = cluster_.ranks_per_node};
  return copus::relayout_seconds(request, cluster_);
}

double ModelledTruth::receiving_seconds(const ParallelStrategy& to) {
  // The master weights are the weights in fp32, and part of the optimizer state otherwise.
  double bytes = 0;
  const Configuration any{.strategy = to, .global_batch = to.data_parallel * to.pipeline_parallel};
  for (const MemoryParts& rank : memory_.predict_every_rank(any)) {
    bytes = std::max(bytes, rank.optimizer + (system_.weight_bytes == 4 ? rank.weights : 0));
  }
  const Link& link = to.world_size() <= cluster_.ranks_per_node ? cluster_.within_node : cluster_.between_nodes;
  return link.latency_seconds + bytes / (link.bytes_per_second * link.efficiency.at(bytes));
}

std::optional<std::string> ModelledTruth::why_too_large(const Configuration& configuration) {
  return out_of_memory_reason(memory_.predict(configuration), cluster_.device.memory_bytes);
}

}  // namespace copus
