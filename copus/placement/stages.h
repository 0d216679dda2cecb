// Divides the decoder layers among the stages of the pipeline, and counts what stages compute.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/description/model_description.h"

namespace copus {

struct LayerRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const LayerRange&) const = default;
};

// Floating-point operations of training on one token, as training_flops_per_token counts them. Layers are alike.
struct TrainingFlops {
  double layer = 0;
  double head = 0;
};
TrainingFlops training_flops(const ModelDescription& model, int64_t sequence_length);

// Cuts the layers into `num_stages` consecutive ranges, each with at least one layer, such that the slowest stage is as
// fast as can be. Stages are compared by their floating-point operations: the first one also holds the embedding (which
// computes next to nothing), the last one final norm and head. Among equals the second slowest stage is as fast as can
// be, and so on (a large head leaves the other stages a choice, and an even one needs the least memory); then the
// earliest stages are largest. num_stages <= num_layers (InternalError otherwise).
std::vector<LayerRange> balance_stages(const ModelDescription& model, int64_t sequence_length, int64_t num_stages);

}  // namespace copus
