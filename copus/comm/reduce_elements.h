// Elementwise reduction of several arrays into one, in the given order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "copus/comm/data_type.h"

namespace copus {

// Reduces `count` elements of `type`: outputs[*][i] = inputs[0][i] op inputs[1][i] op ..., from left to right. Arrays
// are aligned to their elements. An output may be the same array as an input, but must not overlap inputs in any other
// way. Sums of bfloat16 are kept in fp32 and rounded once, to nearest even; sums of integers wrap; a maximum with a NaN
// is NaN.
void reduce_elements(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs, int64_t count,
                     DataType type, Reduction reduction);

}  // namespace copus
