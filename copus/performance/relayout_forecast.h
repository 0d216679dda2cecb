// How long a re-layout stops training, for each pair of layouts, by what its plan moves.
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

// For one thread. It remembers every answer.
class RelayoutForecast {
 public:
  // Serves clusters whose links are described. Where `copied_bytes_per_second` is above 0 the ranks lie in one memory
  // instead: each copies so many bytes in a second, as many ranks at once as there are devices, and links do not count.
  RelayoutForecast(const ModelDescription& model, int64_t sequence_length, ClusterDescription cluster,
                   const TrainingSystem& system, double copied_bytes_per_second = 0);

  // Seconds for which the move of the training state from one layout to another of as many ranks stops training: those
  // of its plan on the cluster's links (copus::relayout_seconds), or of copying its bytes. From many_ranks on, where
  // the plan would take seconds to make, those in which a rank takes its whole new state over its link between nodes
  // (within the node if there is one alone), or copies it. No plan asks more of a receiver; a rank that many others
  // take from may take longer. With them count those in which communicators open, where the cluster says how long one
  // takes. 0 where no state moves: where only schedule, recompute or sequence parallelism change.
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
