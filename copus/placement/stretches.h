// Where the elements of a part of a logical tensor lie in the whole.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "copus/placement/sharding.h"

namespace copus {

// Elements from .. to of a part `box` of a tensor of shape `whole` (one or two dimensions), both row-major: calls
// visit(position, index, count) for each stretch of `count` elements that begins at `position` of the part and at
// `index` of the whole and is contiguous in both, in order.
template <class Visit>
void for_stretches(const Box& box, const std::vector<int64_t>& whole, int64_t from, int64_t to, Visit visit) {
  const int64_t row_stride = whole.back();
  const int64_t first = (box.begin.size() == 2 ? box.begin.front() * row_stride : 0) + box.begin.back();
  // Whole rows follow each other without a gap.
  const int64_t width = box.shape.back() == row_stride ? box.num_elements() : box.shape.back();
  for (int64_t position = from; position < to;) {
    const int64_t row = position / width, column = position % width;
    const int64_t count = std::min(to - position, width - column);
    visit(position, first + row * row_stride + column, count);
    position += count;
  }
}

}  // namespace copus
