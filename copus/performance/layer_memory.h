// The memory that a decoder layer needs on one rank for the activations of a micro-batch.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "copus/description/layer_blocks.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/training_system.h"

namespace copus {

// Bytes of a micro-batch.
struct LayerBytes {
  double input = 0;    // one tensor of the residual stream
  double kept = 0;     // from forward to backward
  double working = 0;  // in addition, while the rank works on the layer
  double waiting = 0;  // from B to W, if W is deferred
};

// The part of a configuration that determines these bytes.
struct LayerShape {
  int64_t tensor_parallel = 1, micro_batch = 1;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::none;
  auto operator<=>(const LayerShape&) const = default;
};

// Returns the bytes of a layer that consists of these blocks.
LayerBytes layer_bytes(const ModelDescription& model, const std::vector<BlockDescription>& blocks,
                       int64_t sequence_length, const TrainingSystem& system, const LayerShape& shape);

}  // namespace copus
