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
  const double bytes = system.whole_matrices.element_bytes;
  const double one = matmul_seconds(device, shorter, shorter, longer, bytes) +
                     matmul_seconds(device, shorter, shorter, shorter, bytes) +
                     matmul_seconds(device, shorter, longer, shorter, bytes);
  return static_cast<double>(system.whole_matrices.newton_schulz_steps) * one;
}

// Returns the most bytes of a hidden matrix: bytes(its elements, the square of its shorter side).
template <class Bytes>
double most_bytes(const ModelDescription& model, const Bytes& bytes) {
  double most = 0;
  for (const ParameterInfo& parameter : list_parameters(model)) {
    if (!is_hidden_matrix(parameter)) continue;
    const double shorter = shorter_side(parameter);
    most = std::max(most, bytes(elements_of(parameter), shorter * shorter));
  }
  return most;
}

}  // namespace

MatrixUpdateSeconds matrix_update_seconds(const ModelDescription& model, const ParallelStrategy& strategy,
                                          const std::vector<LayerRange>& layers, const ClusterDescription& cluster,
                                          const TrainingSystem& system) {
  std::vector<ParameterInfo> matrices;
  std::vector<double> work;
  double elements = 0;
  for (const ParameterInfo& parameter : list_parameters(model)) {
    const auto holds = [&](const LayerRange& range) {
      return range.begin <= parameter.layer && parameter.layer < range.end;
    };
    if (!is_hidden_matrix(parameter) || std::ranges::none_of(layers, holds)) continue;
    matrices.push_back(parameter);
    work.push_back(newton_schulz_flops(parameter.shape, 1));
    elements += elements_of(parameter);
  }
  struct Owner {
    double seconds = 0, elements = 0, matrices = 0;
  };
  const int64_t ranks = strategy.ranks_per_stage();
  std::vector<Owner> owners(ranks);
  const std::vector<int64_t> owner_of = choose_owners(work, ranks);
  for (size_t i = 0; i < matrices.size(); ++i) {
    Owner& owner = owners[owner_of[i]];
    owner.seconds += newton_schulz_seconds(matrices[i], cluster.device, system);
    owner.elements += elements_of(matrices[i]);
    ++owner.matrices;
  }
  const auto most = [&](double Owner::* what) { return (*std::ranges::max_element(owners, {}, what)).*what; };
  MatrixUpdateSeconds seconds{.compute = most(&Owner::seconds)};
  if (ranks == 1) return seconds;
  // A rank sends its parts of momenta to the owners within its copy of the state, and the directions of its own
  // matrices to all copies. It receives the momenta of its own matrices, and the directions of its parts.
  const int64_t shards = strategy.optimizer_shards();
  const double copies = static_cast<double>(strategy.data_parallel / shards);
  const double held = elements / static_cast<double>(strategy.tensor_parallel * shards);
  const double own = most(&Owner::elements);
  const double bytes = 4 * std::max(held / copies + own * copies, own + held);
  const Link link = link_of(cluster, RankSeries{0, 1, ranks});
  seconds.messages =
      2 * most(&Owner::matrices) * link.latency_seconds + send_seconds(link, static_cast<int64_t>(bytes));
  return seconds;
}

double matrix_update_bytes(const ModelDescription& model, const TrainingSystem& system) {
  return most_bytes(model, [&](double elements, double square) {
    return 3 * 4 * elements + system.whole_matrices.element_bytes * (3 * elements + 2 * square);
  });
}

double dual_measurement_bytes(const ModelDescription& model) {
  return most_bytes(model, [](double elements, double square) { return 7 * 4 * elements + 2 * 4 * square; });
}

}  // namespace copus
