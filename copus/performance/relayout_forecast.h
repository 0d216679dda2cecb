// Forecasts how long a re-layout stops training, for any pair of layouts, from the bytes that its plan moves.
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

// Forecasts re-layouts. Caches all answers. Not thread-safe.
class RelayoutForecast {
 public:
  // The cluster's links must be described. If `copied_bytes_per_second` > 0, ranks share one memory and links do not
  // matter. Each rank then copies this many bytes per second, and as many ranks copy at once as there are devices.
  RelayoutForecast(const ModelDescription& model, int64_t sequence_length, ClusterDescription cluster,
                   const TrainingSystem& system, double copied_bytes_per_second = 0);

  // Returns the seconds for which training stops while its state moves between two layouts of the same number of ranks.
  // With links this is the time of the plan's transfers on them (copus::relayout_seconds); in shared memory it is the
  // time to copy the plan's bytes. Adds the time to open communicators if the cluster gives it. 0 if no state moves,
  // because only schedule, recompute or sequence parallelism change.
  // For many_ranks ranks or more, a plan would take seconds to make. The result is then the time for one rank to
  // receive its whole new state over its link to other nodes (on a single node, within the node), or to copy it. Every
  // receiver is done in this time, but a rank that sends to many others may need longer.
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
