#include "copus/comm/reduce_elements.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "copus/base/error.h"

namespace copus {

namespace {

struct Bfloat16 {
  uint16_t bits;
};

template <class Element>
Element widen(Element value) {
  return value;
}

float widen(Bfloat16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

void narrow(Bfloat16& to, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Rounds to nearest even by adding half of the last kept bit, or one unit less if that bit is even. The addition
  // could turn a NaN into an infinity, so a NaN keeps its upper bits and becomes quiet.
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const uint32_t quiet = bits | 0x400000;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  to.bits = static_cast<uint16_t>((is_nan ? quiet : rounded) >> 16);
}

template <class Element>
void narrow(Element& to, Element value) {
  to = value;
}

struct Sum {
  template <class Value>
  Value operator()(Value a, Value b) const {
    return static_cast<Value>(a + b);
  }
};

struct Maximum {
  template <class Value>
  Value operator()(Value a, Value b) const {
    return a > b || a != a ? a : b;
  }
};

// Reduces block by block. The partial results of a block stay in the first-level cache while the inputs are added one
// after another. The block aliases neither inputs nor outputs (which may alias each other), so the compiler can
// vectorise.
template <class Element, class Operation>
void reduce(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs, int64_t count,
            Operation operation) {
  using Value = decltype(widen(Element{}));
  constexpr int64_t block = 8192 / sizeof(Value);
  std::array<Value, block> values;
  std::array<Element, block> narrowed;
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t length = std::min(block, count - begin);
    const auto part = [&](auto* array) { return array + begin * static_cast<int64_t>(sizeof(Element)); };
    const auto* first = reinterpret_cast<const Element*>(part(inputs[0]));
    if (inputs.size() == 1) {
      for (int64_t i = 0; i < length; ++i) values[i] = widen(first[i]);
    } else {
      const auto* second = reinterpret_cast<const Element*>(part(inputs[1]));
      for (int64_t i = 0; i < length; ++i) values[i] = operation(widen(first[i]), widen(second[i]));
    }
    for (size_t k = 2; k < inputs.size(); ++k) {
      const auto* next = reinterpret_cast<const Element*>(part(inputs[k]));
      for (int64_t i = 0; i < length; ++i) values[i] = operation(values[i], widen(next[i]));
    }
    for (int64_t i = 0; i < length; ++i) narrow(narrowed[i], values[i]);
    for (std::byte* output : outputs) std::memcpy(part(output), narrowed.data(), length * sizeof(Element));
  }
}

template <class Operation>
void reduce_as(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs, int64_t count,
               DataType type, Operation operation) {
  switch (type) {
    case DataType::byte:
      return reduce<uint8_t>(inputs, outputs, count, operation);
    case DataType::int64:
      return reduce<int64_t>(inputs, outputs, count, operation);
    case DataType::float32:
      return reduce<float>(inputs, outputs, count, operation);
    case DataType::float64:
      return reduce<double>(inputs, outputs, count, operation);
    case DataType::bfloat16:
      return reduce<Bfloat16>(inputs, outputs, count, operation);
  }
}

}  // namespace

void reduce_elements(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs, int64_t count,
                     DataType type, Reduction reduction) {
  COPUS_CHECK(!inputs.empty());
  if (reduction == Reduction::maximum) return reduce_as(inputs, outputs, count, type, Maximum());
  // Unsigned integers wrap, whereas overflow of signed integers is undefined.
  if (type == DataType::int64) return reduce<uint64_t>(inputs, outputs, count, Sum());
  reduce_as(inputs, outputs, count, type, Sum());
}

}  // namespace copus
