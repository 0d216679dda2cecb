// For each block of a model, the number of elements of the training state that a rank holds. Predictions of time and
// memory use these counts.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// Elements of one tensor-parallel rank, before ZeRO shards them.
struct RoleElements {
  double weights = 0;
  double gradients = 0;  // more than weights if a tied head is on the same rank as its embedding
  double optimizer = 0;  // parameters for which the optimizer keeps state
};

// Elements of a decoder layer.
struct LayerElements : RoleElements {
  // Elements whose gradients tensor-parallel neighbours must add up, by the number of these ranks.
  std::map<int64_t, double> partial = {};
};

// If the vocabulary cannot be split evenly, the elements of the rank with most.
struct BlockElements {
  std::vector<LayerElements> layers;  // by kind of layer (LayerKinds)
  RoleElements embedding;
  RoleElements head;  // final norm and head
};

// Counts the elements of blocks, and caches them: they depend on t, on sequence parallelism, and on whether there is a
// pipeline. Not thread-safe.
class BlockCounter {
 public:
  explicit BlockCounter(const ModelDescription& model) : model_(model) {}

  const BlockElements& of(const ParallelStrategy& strategy);

 private:
  ModelDescription model_;
  std::map<std::tuple<int64_t, bool, bool>, BlockElements> counted_;
};

}  // namespace copus
