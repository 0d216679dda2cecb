// The throughput table: all feasible configurations of a search space, with predicted memory and with step times
// corrected by measurements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/description/search_space.h"
#include "copus/performance/measured/learning.h"
#include "copus/performance/memory.h"
#include "copus/performance/step_time.h"

namespace copus {

struct TableCell {
  Configuration configuration;
  StepTimeParts parts;  // the prediction
  MemoryPrediction memory;
  // The corrected prediction. Its uncertainty grows on more nodes than the cluster's description was compared on.
  Corrected step;
  bool beyond_measured = false;  // whether it needs more nodes than that, and was not itself measured
  int64_t measured_steps = 0;

  double throughput() const { return static_cast<double>(configuration.global_batch) / step.seconds; }  // samples/s
};

struct PerformanceTable {
  std::vector<TableCell> cells;       // every configuration that fits into memory
  int64_t too_large = 0;              // number of configurations that do not fit
  std::optional<TableCell> smallest;  // only if none fits: the one that needs least memory
};

// Makes the table. Step times are predicted only for configurations that fit into a rank's memory
// (memory_of_rank).
PerformanceTable make_table(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                            const TrainingSystem& system, const SearchSpace& space, const Knowledge& knowledge);

}  // namespace copus
