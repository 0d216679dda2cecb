// The element types and reductions that ranks communicate in.
#pragma once

#include <cstdint>

namespace copus {

enum class DataType { byte, int64, float32, float64, bfloat16 };
enum class Reduction { sum, maximum };

constexpr int64_t size_of(DataType type) {
  switch (type) {
    case DataType::byte:
      return 1;
    case DataType::bfloat16:
      return 2;
    case DataType::float32:
      return 4;
    case DataType::int64:
    case DataType::float64:
      return 8;
  }
  return 0;
}

}  // namespace copus
