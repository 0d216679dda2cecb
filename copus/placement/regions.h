// Rectangles of a logical tensor and what two sets of them have in common: the geometry of a re-layout (for this room's
// sources only). Coordinates are those of the logical tensor; one of a single dimension is one row.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "copus/placement/sharding.h"

namespace copus::relayout {

struct Rectangle {
  int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
  int64_t rows() const { return row_end - row_begin; }
  int64_t columns() const { return column_end - column_begin; }
  bool operator==(const Rectangle&) const = default;
};

inline Rectangle rectangle_of(const Box& box) {
  const bool is_matrix = box.begin.size() == 2;
  return {.row_begin = is_matrix ? box.begin[0] : 0,
          .row_end = is_matrix ? box.begin[0] + box.shape[0] : 1,
          .column_begin = box.begin.back(),
          .column_end = box.begin.back() + box.shape.back()};
}

inline Rectangle intersect(const Rectangle& a, const Rectangle& b) {
  Rectangle both{std::max(a.row_begin, b.row_begin), std::min(a.row_end, b.row_end),
                 std::max(a.column_begin, b.column_begin), std::min(a.column_end, b.column_end)};
  both.row_end = std::max(both.row_end, both.row_begin);
  both.column_end = std::max(both.column_end, both.column_begin);
  return both;
}

inline int64_t num_elements(const Rectangle& one) { return one.rows() * one.columns(); }

// What a stretch of a row-major rectangle covers: the rest of a row, whole rows, the beginning of a row.
struct Region {
  std::array<Rectangle, 3> parts;
  size_t count = 0;

  void add(const Rectangle& part) {
    if (num_elements(part) > 0) parts[count++] = part;
  }
  const Rectangle* begin() const { return parts.data(); }
  const Rectangle* end() const { return parts.data() + count; }
};

// Calls visit(rectangle) for everything that lies in both.
template <class Visit>
void for_overlaps(const Region& a, const Region& b, Visit visit) {
  for (const Rectangle& one : a) {
    for (const Rectangle& other : b) {
      const Rectangle both = intersect(one, other);
      if (num_elements(both) > 0) visit(both);
    }
  }
}

}  // namespace copus::relayout
