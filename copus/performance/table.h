// The table of throughput: every feasible configuration of a search space with its predicted step time and memory,
// corrected by what was measured.
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
  StepTimeParts parts;  // as predicted
  MemoryPrediction memory;
  Corrected step;  // as corrected
  int64_t measured_steps = 0;

  double throughput() const { return static_cast<double>(configuration.global_batch) / step.seconds; }  // samples/s
};

struct PerformanceTable {
  std::vector<TableCell> cells;       // all that fit
  int64_t too_large = 0;              // configurations left out for memory
  std::optional<TableCell> smallest;  // of those left out: the one that needs least memory; only where none fits
};

// A configuration is predicted only if it fits into the device's memory.
PerformanceTable make_table(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                            const TrainingSystem& system, const SearchSpace& space, const Knowledge& knowledge);

}  // namespace copus
