// The memory side of the programs behind published runs: what they keep, and how much their devices have.
#pragma once

#include <string>

#include "copus/performance/training_system.h"
#include "copus/workshop/published/runs.h"

namespace copus {

// A published run in the words of our model of memory.
struct PublishedMemoryCase {
  TrainingSystem system;
  ModelDescription model;
  Configuration configuration;
  int64_t sequence_length = 0;  // that a rank holds, where context parallelism shares it out
  double memory_bytes = 0;      // of a device
  std::string left_out;         // why we cannot say; the rest is then not set. Empty: we can
};

PublishedMemoryCase describe_published_memory(const PublishedRun& run);

// What programs can use of the device that a text such as "A100-80GB SXM" names; 0 where it does not say.
double published_memory_bytes(const std::string& hardware);

}  // namespace copus
