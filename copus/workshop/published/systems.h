// Describes the programs behind published runs, with the properties that determine a step's time and memory, and the
// clusters on which they ran. Predictions for these programs are compared with the published measurements.
#pragma once

#include <string>

#include "copus/performance/training_system.h"
#include "copus/workshop/published/runs.h"

namespace copus {

// A published run in the terms of our models.
struct PublishedCase {
  std::string cluster;  // name of the file in configs/clusters
  std::string group;    // runs of one program on one cluster, for which the same constants are fitted
  TrainingSystem system;
  ModelDescription model;
  Configuration configuration;
  std::string left_out;  // why the run's time cannot be predicted; if set, the other fields are not
};

PublishedCase describe_published(const PublishedRun& run);

}  // namespace copus
