// For every parameter's master weights and moments, the ranks that hold each element. It serves code that reads the
// whole state of a layout.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/placement/sharding.h"

namespace copus {

// Elements of one parameter and the ranks that hold them.
struct StatePart {
  Box box;                     // the part of the logical tensor that these ranks hold in their buckets
  int64_t begin = 0, end = 0;  // the box's elements, row-major, in the shares of these ranks: all of them without ZeRO
  std::vector<int64_t> ranks;  // world ranks, ascending; each has the same elements
};

// Lists the parts of every parameter in canonical order. Each element of a parameter is in exactly one part. A tied
// copy of the head is ignored, and only the first of several tensor-parallel replicas counts. `placement` may be the
// placement of any rank.
std::vector<std::vector<StatePart>> find_state_parts(const ModelDescription& model, const Placement& placement);

}  // namespace copus
