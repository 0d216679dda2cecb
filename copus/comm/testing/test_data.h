// For tests: arrays of every type, and their reduction, computed element by element.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "copus/base/numbers/mix_bits.h"
#include "copus/comm/data_type.h"

namespace copus {

using Bytes = std::vector<std::byte>;

inline constexpr DataType all_types[] = {DataType::byte, DataType::int64, DataType::float32, DataType::float64,
                                         DataType::bfloat16};
inline constexpr Reduction all_reductions[] = {Reduction::sum, Reduction::maximum};

template <class Value>
Value load(const Bytes& bytes, int64_t i) {
  Value value;
  std::memcpy(&value, bytes.data() + i * sizeof(Value), sizeof(Value));
  return value;
}

template <class Value>
void store(Bytes& bytes, int64_t i, Value value) {
  std::memcpy(bytes.data() + i * sizeof(Value), &value, sizeof(Value));
}

inline float float_of_bfloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// By definition: the nearer of the two neighbours, or the even one in case of a tie.
inline uint16_t nearest_bfloat16(float value) {
  const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  const auto above = static_cast<uint16_t>(below + 1);
  const double to_below = std::abs(static_cast<double>(value) - float_of_bfloat16(below));
  const double to_above = std::abs(static_cast<double>(float_of_bfloat16(above)) - value);
  if (to_below != to_above) return to_below < to_above ? below : above;
  return below % 2 == 0 ? below : above;
}

// The input of member `member`: values whose sums round, so that the order of summation matters.
inline Bytes make_data(int64_t count, DataType type, uint64_t seed) {
  Bytes data(count * size_of(type));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = mix_bits(seed * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(i));
    const double value = static_cast<double>(static_cast<int64_t>(bits)) * 0x1p-63 * static_cast<double>(1 << bits % 9);
    switch (type) {
      case DataType::byte:
        store(data, i, static_cast<uint8_t>(bits));
        break;
      case DataType::int64:
        store(data, i, bits);
        break;
      case DataType::float32:
        store(data, i, static_cast<float>(value));
        break;
      case DataType::float64:
        store(data, i, value);
        break;
      case DataType::bfloat16:
        store(data, i, nearest_bfloat16(static_cast<float>(value)));
        break;
    }
  }
  return data;
}

template <class Value>
Value combine(Value a, Value b, Reduction reduction) {
  return reduction == Reduction::sum ? static_cast<Value>(a + b) : std::max(a, b);
}

template <class Value>
void reduce_into(Bytes& result, const std::vector<Bytes>& inputs, int64_t i, Reduction reduction) {
  Value value = load<Value>(inputs[0], i);
  for (size_t k = 1; k < inputs.size(); ++k) value = combine(value, load<Value>(inputs[k], i), reduction);
  store(result, i, value);
}

inline Bytes reduce_reference(const std::vector<Bytes>& inputs, DataType type, Reduction reduction) {
  Bytes result(inputs[0].size());
  const int64_t count = static_cast<int64_t>(result.size()) / size_of(type);
  for (int64_t i = 0; i < count; ++i) {
    switch (type) {
      case DataType::byte:
        reduce_into<uint8_t>(result, inputs, i, reduction);
        break;
      case DataType::int64:
        if (reduction == Reduction::sum) {
          reduce_into<uint64_t>(result, inputs, i, reduction);
        } else {
          reduce_into<int64_t>(result, inputs, i, reduction);
        }
        break;
      case DataType::float32:
        reduce_into<float>(result, inputs, i, reduction);
        break;
      case DataType::float64:
        reduce_into<double>(result, inputs, i, reduction);
        break;
      case DataType::bfloat16: {
        float value = float_of_bfloat16(load<uint16_t>(inputs[0], i));
        for (size_t k = 1; k < inputs.size(); ++k) {
          value = combine(value, float_of_bfloat16(load<uint16_t>(inputs[k], i)), reduction);
        }
        store(result, i, nearest_bfloat16(value));
        break;
      }
    }
  }
  return result;
}

inline std::vector<Bytes> make_inputs(int64_t members, int64_t count, DataType type, uint64_t seed) {
  std::vector<Bytes> inputs;
  for (int64_t member = 0; member < members; ++member) {
    inputs.push_back(make_data(count, type, seed * 100 + static_cast<uint64_t>(member)));
  }
  return inputs;
}

inline Bytes slice(const Bytes& bytes, int64_t begin, int64_t length) {
  return {bytes.begin() + begin, bytes.begin() + begin + length};
}

}  // namespace copus
