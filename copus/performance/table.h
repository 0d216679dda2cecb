// The table of throughput: every feasible configuration of a search space with its predicted step time and memory,
// corrected by measurements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/description/search_space.h"
#include "copus/performance/learning.h"
#include "copus/performance/memory.h"
#include "copus/performance/step_time.h"

namespace copus {

struct TableCell {
  Configuration configuration;
  StepTimeParts parts;  // the prediction
  MemoryPrediction memory;
  Corrected step;  // the corrected prediction, less sure on more nodes than the cluster's description was compared on
  bool beyond_measured = false;  // whether it is so, and was not measured itself
  int64_t measured_steps = 0;

  double throughput() const { return static_cast<double>(configuration.global_batch) / step.seconds; }  // samples/s
};

struct PerformanceTable {
  std::vector<TableCell> cells;       // every configuration that fits
  int64_t too_large = 0;              // number of configurations left out for memory
  std::optional<TableCell> smallest;  // the one left out that needs least memory; only where none fits
};

// Makes the table. The step time of a configuration is predicted only if it fits into the device's memory.
PerformanceTable make_table(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                            const TrainingSystem& system, const SearchSpace& space, const Knowledge& knowledge);

}  // namespace copus
