// Lists, for each parameter's master weights and moments, the ranks that hold each element; for code that reads the
// whole state of a layout.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/placement/sharding.h"

namespace copus {

// A range of a parameter's elements, and the ranks that hold it.
struct StatePart {
  Box box;                     // the part of the logical tensor in these ranks' buckets
  int64_t begin = 0, end = 0;  // row-major range within the box in these ranks' shares; without ZeRO the entire box
  std::vector<int64_t> ranks;  // world ranks with these elements, ascending
};

// Lists the parts of all parameters, in canonical order. Each element of a parameter is in exactly one part. Tied
// copies of the head are ignored, and of several tensor-parallel replicas only the first counts. Any rank's `placement`
// gives the same result.
std::vector<std::vector<StatePart>> find_state_parts(const ModelDescription& model, const Placement& placement);

}  // namespace copus
