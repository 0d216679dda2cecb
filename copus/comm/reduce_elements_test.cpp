#include "copus/comm/reduce_elements.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "copus/comm/testing/test_data.h"

namespace copus {
namespace {

template <class Element>
std::vector<Element> reduce(const std::vector<std::vector<Element>>& inputs, DataType type, Reduction reduction) {
  std::vector<const std::byte*> from;
  for (const auto& input : inputs) from.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<Element> result(inputs[0].size());
  auto* const to = reinterpret_cast<std::byte*>(result.data());
  reduce_elements(from, {&to, 1}, static_cast<int64_t>(result.size()), type, reduction);
  return result;
}

TEST(ReduceElements, SumsFromTheLeft) {
  const std::vector<std::vector<float>> inputs = {{1e8F, 1}, {3, 1e8F}, {-1e8F, -1e8F}, {0.5F, 0.25F}};
  EXPECT_EQ(reduce(inputs, DataType::float32, Reduction::sum),
            (std::vector<float>{((1e8F + 3) - 1e8F) + 0.5F, ((1 + 1e8F) - 1e8F) + 0.25F}));
}

TEST(ReduceElements, RoundsASumOfBfloat16OnceToNearestEven) {
  const uint16_t one = nearest_bfloat16(1);
  const uint16_t half_a_place = nearest_bfloat16(std::ldexp(1.0F, -8));
  const uint16_t a_bit_more = nearest_bfloat16(std::ldexp(1.0F, -15));
  // With rounding after each addition, the second sum would lose both small terms.
  const std::vector<std::vector<uint16_t>> inputs = {
      {one, one, static_cast<uint16_t>(one + 1)}, {half_a_place, half_a_place, half_a_place}, {0, a_bit_more, 0}};
  EXPECT_EQ(reduce(inputs, DataType::bfloat16, Reduction::sum),
            (std::vector<uint16_t>{one, static_cast<uint16_t>(one + 1), static_cast<uint16_t>(one + 2)}));
}

TEST(ReduceElements, KeepsInfinitiesAndNansOfBfloat16) {
  const uint16_t infinity = 0x7f80;
  const uint16_t largest = 0x7f7f;
  const uint16_t smallest_nan = 0x7f81;
  const auto sums = reduce<uint16_t>({{infinity, largest, smallest_nan, infinity}, {0, largest, 0, 0xff80}},
                                     DataType::bfloat16, Reduction::sum);
  EXPECT_EQ(sums[0], infinity);
  EXPECT_EQ(sums[1], infinity);
  EXPECT_TRUE(std::isnan(float_of_bfloat16(sums[2])));
  EXPECT_TRUE(std::isnan(float_of_bfloat16(sums[3])));
}

TEST(ReduceElements, WrapsSumsOfIntegers) {
  constexpr int64_t largest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(reduce<int64_t>({{largest}, {2}}, DataType::int64, Reduction::sum)[0],
            std::numeric_limits<int64_t>::min() + 1);
  EXPECT_EQ(reduce<uint8_t>({{250}, {10}}, DataType::byte, Reduction::sum)[0], 4);
  EXPECT_EQ(reduce<int64_t>({{-5}, {-7}, {-6}}, DataType::int64, Reduction::maximum)[0], -5);
}

TEST(ReduceElements, AMaximumWithANanIsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto maxima = reduce<float>({{nan, 1, 1}, {2, nan, 2}, {3, 3, 0}}, DataType::float32, Reduction::maximum);
  EXPECT_TRUE(std::isnan(maxima[0]));
  EXPECT_TRUE(std::isnan(maxima[1]));
  EXPECT_EQ(maxima[2], 2);
}

TEST(ReduceElements, WritesIntoAnInputAndBesideIt) {
  for (const DataType type : all_types) {
    for (const int64_t count : {1, 1023, 5000}) {
      const auto inputs = make_inputs(3, count, type, 7);
      const Bytes expected = reduce_reference(inputs, type, Reduction::sum);
      for (size_t own = 0; own < inputs.size(); ++own) {
        auto arrays = inputs;
        Bytes beside(expected.size());
        const std::array<const std::byte*, 3> from{arrays[0].data(), arrays[1].data(), arrays[2].data()};
        const std::array<std::byte*, 2> to{arrays[own].data(), beside.data()};
        reduce_elements(from, to, count, type, Reduction::sum);
        EXPECT_TRUE(arrays[own] == expected && beside == expected) << static_cast<int>(type) << " " << count;
      }
    }
  }
}

}  // namespace
}  // namespace copus
