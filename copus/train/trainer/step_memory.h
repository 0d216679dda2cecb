// Whether a rank has the memory for a step in another configuration.
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "copus/config/run_config.h"
#include "copus/train/step/obstacle.h"

namespace copus {

// The bytes that a step is predicted to need on this rank of a configuration, in addition to its state.
double step_bytes(const RunConfig& config, const Configuration& configuration, int64_t rank);

// Allocates so many bytes for a moment. Returns the obstacle if they are not available. `what`: what needs them.
std::optional<Obstacle> lack_of_memory(double bytes, const char* what, at::Device device);

}  // namespace copus
