// The copies that a plan of a re-layout consists of.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "copus/layout/relayout_plan.h"

namespace copus {

// From one buffer of elements of this size to another.
inline void copy_runs(const std::vector<CopyRun>& runs, const std::byte* from, std::byte* to, int64_t element_size) {
  for (const CopyRun& run : runs) {
    for (int64_t row = 0; row < run.rows; ++row) {
      std::memcpy(to + (run.to + row * run.to_stride) * element_size,
                  from + (run.from + row * run.from_stride) * element_size,
                  static_cast<size_t>(run.count * element_size));
    }
  }
}

// Only what is to be sent, without gaps.
inline void pack_runs(const std::vector<CopyRun>& runs, const std::byte* from, std::byte* packed,
                      int64_t element_size) {
  for (const CopyRun& run : runs) {
    const auto bytes = static_cast<size_t>(run.count * element_size);
    for (int64_t row = 0; row < run.rows; ++row, packed += bytes) {
      std::memcpy(packed, from + (run.from + row * run.from_stride) * element_size, bytes);
    }
  }
}

inline void unpack_runs(const std::vector<CopyRun>& runs, const std::byte* packed, std::byte* to,
                        int64_t element_size) {
  for (const CopyRun& run : runs) {
    const auto bytes = static_cast<size_t>(run.count * element_size);
    for (int64_t row = 0; row < run.rows; ++row, packed += bytes) {
      std::memcpy(to + (run.to + row * run.to_stride) * element_size, packed, bytes);
    }
  }
}

}  // namespace copus
