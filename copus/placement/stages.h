// Splits the decoder layers into pipeline stages, and counts the operations of stages.
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

// Floating-point operations of training on one token, counted as in training_flops_per_token.
struct TrainingFlops {
  std::vector<double> layers;
  double head = 0;
};
TrainingFlops training_flops(const ModelDescription& model, int64_t sequence_length);

// Splits the layers into `num_stages` consecutive ranges of at least one layer each, such that the slowest stage, by
// floating-point operations, is as fast as possible. The first stage also holds the embedding (which computes almost
// nothing), the last one the final norm and the head. Ties are broken by the second slowest stage, and so on: if a
// large head makes the last stage slowest, the other stages should still be even, because this needs least memory.
// Among remaining ties, the earliest stages are largest. Throws InternalError if num_stages > num_layers.
std::vector<LayerRange> balance_stages(const ModelDescription& model, int64_t sequence_length, int64_t num_stages);

}  // namespace copus
