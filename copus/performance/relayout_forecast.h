// How long a re-layout stops training, for each pair of layouts, from what its plan moves.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/memory.h"
#include "copus/performance/training_system.h"

namespace copus {

// Caches every answer. Not thread-safe.
class RelayoutForecast {
 public:
  // Requires a cluster whose links are described. With `copied_bytes_per_second` above 0 the ranks share one memory
  // instead, and links do not matter. Each rank then copies this many bytes per second, and as many ranks copy at once
  // as there are devices.
  RelayoutForecast(const ModelDescription& model, int64_t sequence_length, ClusterDescription cluster,
                   const TrainingSystem& system, double copied_bytes_per_second = 0);

  // Returns the seconds for which training stops while the training state moves between two layouts with the same
  // number of ranks. They follow from the plan of the move: from its time on the cluster's links
  // (copus::relayout_seconds), or from the time to copy its bytes. With many_ranks ranks or more, making the plan would
  // take seconds. The result is then the time in which a rank receives its whole new state over its link between nodes
  // (within the node if there is only one), or copies it. No plan requires more of a receiver, but a rank from which
  // many others receive may take longer. If the cluster gives the time to open a communicator, it is added. 0 if no
  // state moves, because only schedule, recompute or sequence parallelism change.
  double seconds(const ParallelStrategy& from, const ParallelStrategy& to);
  static constexpr int64_t many_ranks = 512;

 private:
  double planned_seconds(const ParallelStrategy& from, const ParallelStrategy& to) const;
  int64_t ranks_at_once(int64_t ranks) const;
  double receiving_seconds(const ParallelStrategy& to);

  ModelDescription model_;
  int64_t sequence_length_;
  ClusterDescription cluster_;
  TrainingSystem system_;
  double copied_bytes_per_second_;
  MemoryModel memory_;
  std::map<std::pair<ParallelStrategy, ParallelStrategy>, double> seconds_;
};

}  // namespace copus
