// How many elements of the parameters one rank holds, as their Sharding says: what the models of time and of memory
// both count by.
#pragma once

#include <cstdint>
#include <map>

#include "copus/description/model_description.h"

namespace copus {

// Of one tensor-parallel rank; where the vocabulary is not cut evenly, of the one with most.
struct LocalElements {
  double layer = 0;
  double embedding = 0;
  double head = 0;  // final norm and head; a tied head is the embedding's copy
  // Those of a layer whose gradients differ among neighbouring ranks and have to be added, by the number of these
  // ranks.
  std::map<int64_t, double> partial;
};

LocalElements count_local_elements(const ModelDescription& model, int64_t tensor_parallel, bool sequence_parallel);

}  // namespace copus
