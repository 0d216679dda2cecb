#include "copus/performance/relayout_forecast.h"

#include <algorithm>
#include <utility>

#include "copus/performance/communicators.h"
#include "copus/placement/relayout_plan.h"

namespace copus {

namespace {

// Resets the fields that do not affect where the training state is.
ParallelStrategy without_what_moves_no_state(ParallelStrategy strategy) {
  const ParallelStrategy any;
  strategy.schedule = any.schedule;
  strategy.sequence_parallel = any.sequence_parallel;
  strategy.recompute = any.recompute;
  return strategy;
}

}  // namespace

RelayoutForecast::RelayoutForecast(const ModelDescription& model, int64_t sequence_length, ClusterDescription cluster,
                                   const TrainingSystem& system, double copied_bytes_per_second)
    : model_(model),
      sequence_length_(sequence_length),
      cluster_(std::move(cluster)),
      system_(system),
      copied_bytes_per_second_(copied_bytes_per_second),
      memory_(model, sequence_length, system) {}

double RelayoutForecast::seconds(const ParallelStrategy& from, const ParallelStrategy& to) {
  const ParallelStrategy begin = without_what_moves_no_state(from), end = without_what_moves_no_state(to);
  if (begin == end) return 0;
  const auto known = seconds_.find({begin, end});
  if (known != seconds_.end()) return known->second;
  const double moving = end.world_size() < many_ranks ? planned_seconds(begin, end) : receiving_seconds(to);
  const double seconds = moving + opening_seconds(model_, begin, end, cluster_.communicators);
  return seconds_.emplace(std::pair(begin, end), seconds).first->second;
}

double RelayoutForecast::planned_seconds(const ParallelStrategy& from, const ParallelStrategy& to) const {
  const RelayoutRequest request{
      .model = model_,
      .sequence_length = sequence_length_,
      .from = from,
      .to = to,
      .recipe = state_recipe(system_.optimizer, system_.weight_bytes == 4 ? DType::f32 : DType::bf16),
      .ranks_per_node = cluster_.ranks_per_node};
  if (copied_bytes_per_second_ == 0) return relayout_seconds(request, cluster_);
  const auto bytes = static_cast<double>(plan_relayout(request, 0).bytes_copied);
  return bytes / static_cast<double>(ranks_at_once(to.world_size())) / copied_bytes_per_second_;
}

// Returns how many ranks copy at the same time: all, or the number of devices if ranks share them.
int64_t RelayoutForecast::ranks_at_once(int64_t ranks) const {
  if (cluster_.devices_per_node == 0) return ranks;
  const int64_t nodes = (ranks + cluster_.ranks_per_node - 1) / cluster_.ranks_per_node;
  return std::min(ranks, nodes * cluster_.devices_per_node);
}

double RelayoutForecast::receiving_seconds(const ParallelStrategy& to) {
  // In fp32 the weights are the master weights; otherwise master weights count as optimizer state.
  double bytes = 0;
  const Configuration any{.strategy = to, .global_batch = to.data_parallel * to.pipeline_parallel};
  for (const MemoryParts& rank : memory_.predict_every_rank(any)) {
    bytes = std::max(bytes, rank.optimizer + (system_.weight_bytes == 4 ? rank.weights : 0));
  }
  if (copied_bytes_per_second_ > 0) return bytes / copied_bytes_per_second_;
  const Link& link = to.world_size() <= cluster_.ranks_per_node ? cluster_.within_node : cluster_.between_nodes;
  return link.latency_seconds + bytes / (link.bytes_per_second * link.efficiency.at(bytes));
}

}  // namespace copus
