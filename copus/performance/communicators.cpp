#include "copus/performance/communicators.h"

#include <algorithm>
#include <utility>

namespace copus {

namespace {

int64_t of_group(int64_t ranks) { return ranks > 1 ? 1 : 0; }

// Counts the groups of ranks that hold the same key/value heads and sum their gradients. Other partial gradients are
// summed over all tensor-parallel ranks.
int64_t count_head_groups(const ModelDescription& model, const ParallelStrategy& strategy) {
  const int64_t replicas = strategy.tensor_parallel / std::min(strategy.tensor_parallel, model.num_kv_heads);
  return replicas < strategy.tensor_parallel ? of_group(replicas) : 0;
}

CommunicatorCounts tensor_communicators(const ModelDescription& model, const ParallelStrategy& strategy) {
  return {.collectives = of_group(strategy.tensor_parallel) + count_head_groups(model, strategy)};
}

CommunicatorCounts data_communicators(const ParallelStrategy& strategy) {
  const int64_t replicas = strategy.zero_replicas;
  if (replicas == 1) return {.collectives = of_group(strategy.data_parallel)};
  // Two groups: the ranks that together hold one copy of the state, and the ranks that hold the same shard in different
  // copies. If one group has a single rank, the other has all data-parallel ranks.
  return {.collectives = of_group(strategy.zero_shards()) + of_group(replicas)};
}

CommunicatorCounts pipeline_communicators(const ModelDescription& model, const ParallelStrategy& strategy,
                                          int64_t pipeline_rank) {
  const int64_t stages = strategy.pipeline_parallel;
  if (stages == 1) return {};
  const bool is_at_an_end = pipeline_rank == 0 || pipeline_rank == stages - 1;
  CommunicatorCounts counts;
  // With several chunks the pipeline is a ring, with two links per neighbour, one for each direction; otherwise it is a
  // line, with one link per neighbour.
  counts.messages = strategy.virtual_stages > 1 ? 4 : is_at_an_end ? 1 : 2;
  if (model.tie_word_embeddings && is_at_an_end) {
    counts.collectives = 1;
    if (stages > 2) ++counts.messages;  // with two stages the ends are neighbours
  }
  return counts;
}

CommunicatorCounts sum(const CommunicatorCounts& a, const CommunicatorCounts& b) {
  return {a.collectives + b.collectives, a.exchanges + b.exchanges, a.messages + b.messages};
}

}  // namespace

CommunicatorCounts count_communicators(const ModelDescription& model, const ParallelStrategy& strategy,
                                       int64_t pipeline_rank) {
  CommunicatorCounts counts = sum(tensor_communicators(model, strategy), data_communicators(strategy));
  counts.exchanges = of_group(strategy.world_size());
  return sum(counts, pipeline_communicators(model, strategy, pipeline_rank));
}

double communicator_bytes(const CommunicatorCounts& counts, const CommunicatorCosts& costs) {
  return static_cast<double>(counts.collectives) * costs.collective_bytes +
         static_cast<double>(counts.exchanges) * costs.exchange_bytes +
         static_cast<double>(counts.messages) * costs.message_bytes;
}

double opening_seconds(const ModelDescription& model, const ParallelStrategy& from, const ParallelStrategy& to,
                       const CommunicatorCosts& costs) {
  CommunicatorCounts missing;
  const bool same_tensor = from.tensor_parallel == to.tensor_parallel;
  const bool same_pipeline = from.pipeline_parallel == to.pipeline_parallel;
  if (!same_tensor) missing = sum(missing, tensor_communicators(model, to));
  const bool same_data =
      same_tensor && same_pipeline && from.data_parallel == to.data_parallel && from.zero_replicas == to.zero_replicas;
  if (!same_data) missing = sum(missing, data_communicators(to));
  // The stages of a pipeline are d x t ranks apart.
  if (!same_pipeline || (from.virtual_stages > 1) != (to.virtual_stages > 1)) {
    CommunicatorCounts most;
    for (int64_t rank : {int64_t{0}, std::min<int64_t>(1, to.pipeline_parallel - 1)}) {
      const CommunicatorCounts here = pipeline_communicators(model, to, rank);
      if (here.collectives + here.messages > most.collectives + most.messages) most = here;
    }
    missing = sum(missing, most);
  }
  return static_cast<double>(missing.collectives + missing.messages) * costs.split_seconds;
}

}  // namespace copus
