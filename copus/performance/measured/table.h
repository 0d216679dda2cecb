// The throughput table: every feasible configuration of a search space with its predicted step time and memory,
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
  // The corrected prediction. It is less certain on more nodes than the cluster's description was compared on.
  Corrected step;
  bool beyond_measured = false;  // whether it takes more nodes than that, and was not measured itself
  int64_t measured_steps = 0;

  double throughput() const { return static_cast<double>(configuration.global_batch) / step.seconds; }  // samples/s
};

struct PerformanceTable {
  std::vector<TableCell> cells;       // every configuration that fits
  int64_t too_large = 0;              // number of configurations excluded for lack of memory
  std::optional<TableCell> smallest;  // the excluded one that needs least memory; only if none fits
};

// Makes the table. It predicts a configuration's step time only if the configuration fits into the device's memory.
PerformanceTable make_table(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                            const TrainingSystem& system, const SearchSpace& space, const Knowledge& knowledge);

}  // namespace copus
