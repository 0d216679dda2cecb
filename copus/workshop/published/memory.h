// Describes the memory of the programs behind published runs: what they keep, and the memory of their devices.
#pragma once

#include <string>

#include "copus/performance/training_system.h"
#include "copus/workshop/published/runs.h"

namespace copus {

// A published run in the terms of our memory model.
struct PublishedMemoryCase {
  TrainingSystem system;
  ModelDescription model;
  Configuration configuration;
  int64_t sequence_length = 0;  // of a rank, if context parallelism splits sequences
  double memory_bytes = 0;      // of a device
  std::string left_out;         // why it cannot be described; the other fields are then not set. Empty: it can
};

PublishedMemoryCase describe_published_memory(const PublishedRun& run);

// The memory that programs can use on the device named by a text such as "A100-80GB SXM"; 0 if the text does not say.
double published_memory_bytes(const std::string& hardware);

}  // namespace copus
