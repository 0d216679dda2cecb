// Divides the decoder layers among the stages of the pipeline, and counts the operations of stages.
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

// Floating-point operations of training on one token, as training_flops_per_token counts them.
struct TrainingFlops {
  std::vector<double> layers;
  double head = 0;
};
TrainingFlops training_flops(const ModelDescription& model, int64_t sequence_length);

// Splits the layers into `num_stages` consecutive ranges, each with at least one layer, such that the slowest stage is
// as fast as possible. Stages are compared by their floating-point operations. The first stage also holds the embedding
// (which computes almost nothing), the last one the final norm and the head. Ties are broken by the second slowest
// stage, and so on, because an even split needs the least memory and a large head leaves the other stages a choice.
// Remaining ties make the earliest stages largest. Requires num_stages <= num_layers (InternalError otherwise).
std::vector<LayerRange> balance_stages(const ModelDescription& model, int64_t sequence_length, int64_t num_stages);

}  // namespace copus
