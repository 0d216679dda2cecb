// The copies that a plan of a re-layout consists of.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "copus/placement/relayout_plan.h"

namespace copus {

// From one buffer of elements of this size to another, in host memory.
inline void copy_runs(const std::vector<CopyRun>& runs, const std::byte* from, std::byte* to, int64_t element_size) {
  for (const CopyRun& run : runs) {
    for (int64_t row = 0; row < run.rows; ++row) {
      std::memcpy(to + (run.to + row * run.to_stride) * element_size,
                  from + (run.from + row * run.from_stride) * element_size,
                  static_cast<size_t>(run.count * element_size));
    }
  }
}

}  // namespace copus
