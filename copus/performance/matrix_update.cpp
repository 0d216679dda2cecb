#include "copus/performance/matrix_update.h"

#include <algorithm>
#include <cstddef>

#include "copus/description/muon.h"
#include "copus/performance/block_time.h"
#include "copus/performance/link_cost.h"
#include "copus/placement/matrix_shares.h"

namespace copus {

namespace {

double elements_of(const ParameterInfo& matrix) { return static_cast<double>(matrix.num_elements()); }

double shorter_side(const ParameterInfo& matrix) {
  return static_cast<double>(std::min(matrix.shape[0], matrix.shape[1]));
}

// Returns the seconds of the Newton-Schulz iteration on a matrix.
double newton_schulz_seconds(const ParameterInfo& matrix, const Device& device, const TrainingSystem& system) {
  const double shorter = shorter_side(matrix), longer = elements_of(matrix) / shorter;
  const double one = matmul_seconds(device, shorter, shorter, longer, system.activation_bytes) +
                     matmul_seconds(device, shorter, shorter, shorter, system.activation_bytes) +
                     matmul_seconds(device, shorter, longer, shorter, system.activation_bytes);
  return static_cast<double>(system.newton_schulz_steps) * one;
}

}  // namespace

double matrix_update_seconds(const ModelDescription& model, const ParallelStrategy& strategy,
                             const std::vector<LayerRange>& layers, const ClusterDescription& cluster,
                             const TrainingSystem& system) {
  std::vector<double> work, seconds;
  double elements = 0;
  for (const ParameterInfo& parameter : list_parameters(model)) {
    const auto holds = [&](const LayerRange& range) {
      return range.begin <= parameter.layer && parameter.layer < range.end;
    };
    if (!is_hidden_matrix(parameter) || std::ranges::none_of(layers, holds)) continue;
    work.push_back(newton_schulz_flops(parameter.shape, 1));
    seconds.push_back(newton_schulz_seconds(parameter, cluster.device, system));
    elements += elements_of(parameter);
  }
  const int64_t ranks = strategy.data_parallel * strategy.tensor_parallel;
  const std::vector<int64_t> owners = choose_owners(work, ranks);
  std::vector<double> busy(ranks), rounds(ranks);
  for (size_t i = 0; i < owners.size(); ++i) {
    busy[owners[i]] += seconds[i];
    ++rounds[owners[i]];
  }
  double total = std::ranges::max(busy);
  if (ranks > 1) {
    constexpr double element_bytes = 4;
    const double shards = static_cast<double>(strategy.cuts_optimizer() ? strategy.zero_shards() : 1);
    const double held = elements / static_cast<double>(strategy.tensor_parallel) / shards;
    const double holders = shards * static_cast<double>(strategy.tensor_parallel);
    const double sent = held * (1 - 1 / holders) + held * (1 - 1 / static_cast<double>(ranks));
    const Link link = link_of(cluster, RankSeries{0, 1, ranks});
    total += 2 * std::ranges::max(rounds) * link.latency_seconds +
             send_seconds(link, static_cast<int64_t>(element_bytes * sent));
  }
  return total;
}

double matrix_update_bytes(const ModelDescription& model, const TrainingSystem& system) {
  double most = 0;
  for (const ParameterInfo& parameter : list_parameters(model)) {
    if (!is_hidden_matrix(parameter)) continue;
    const double shorter = shorter_side(parameter), elements = elements_of(parameter);
    most = std::max(most, 3 * 4 * elements + system.activation_bytes * (3 * elements + 2 * shorter * shorter));
  }
  return most;
}

}  // namespace copus
