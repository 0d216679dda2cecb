// Describes the programs behind published runs for the memory model: the tensors that they keep, and the memory of
// their devices.
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
  int64_t sequence_length = 0;  // of one rank: shorter if context parallelism splits sequences
  double memory_bytes = 0;      // of a device
  std::string left_out;         // why the run cannot be described; if set, the other fields are not
};

PublishedMemoryCase describe_published_memory(const PublishedRun& run);

// The bytes that programs can use on the device that a text such as "A100-80GB SXM" names; 0 if the text gives no size.
double published_memory_bytes(const std::string& hardware);

}  // namespace copus
