// The programs behind published runs, as far as they decide a step's time and memory, and the clusters that they ran
// on: to compare predictions with what was measured there.
#pragma once

#include <string>

#include "copus/performance/training_system.h"
#include "copus/workshop/published/runs.h"

namespace copus {

// A published run in the words of our models.
struct PublishedCase {
  std::string cluster;  // name of the file in configs/clusters
  std::string group;    // runs of one program on one cluster, which have the fitted constants in common
  TrainingSystem system;
  ModelDescription model;
  Configuration configuration;
  std::string left_out;  // why we cannot say how long it takes; the rest is then not set. Empty: we can
};

PublishedCase describe_published(const PublishedRun& run);

}  // namespace copus
