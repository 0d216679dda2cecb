// The number of training-state elements that a rank holds of each block of a model. Predictions of time and memory use
// these counts.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// Elements on one tensor-parallel rank, before ZeRO shards them.
struct RoleElements {
  double weights = 0;
  double gradients = 0;  // more than weights if a tied head and its embedding are on the same rank
  double optimizer = 0;  // parameters with optimizer state
};

// Elements of a decoder layer.
struct LayerElements : RoleElements {
  // Elements whose gradients neighbouring tensor-parallel ranks must sum, by the number of these ranks.
  std::map<int64_t, double> partial = {};
};

// The elements of a model's blocks. In uneven splits of the vocabulary, of the rank with most elements.
struct BlockElements {
  std::vector<LayerElements> layers;  // by kind of layer (LayerKinds)
  RoleElements embedding;
  RoleElements head;  // final norm and head
};

// Counts the elements of blocks. Caches the counts, which depend on t, on sequence parallelism, and on whether p > 1.
// Not thread-safe.
class BlockCounter {
 public:
  explicit BlockCounter(ModelDescription model) : model_(std::move(model)) {}

  const BlockElements& of(const ParallelStrategy& strategy);

 private:
  ModelDescription model_;
  std::map<std::tuple<int64_t, bool, bool>, BlockElements> counted_;
};

}  // namespace copus
