#include "copus/base/numbers/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "copus/base/error.h"
#include "copus/base/numbers/float_names.h"

namespace copus {
namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();

// Rounds to nearest, ties to even, by a search over all finite values of the 16-bit type: slow but obviously right.
class NearestByTable {
 public:
  explicit NearestByTable(float (*to_float)(uint16_t)) {
    for (uint32_t bits = 0; bits < 0x8000u; ++bits) {
      const float value = to_float(static_cast<uint16_t>(bits));
      if (!std::isfinite(value)) break;
      values_.push_back(value);
    }
    // The value that would follow the largest one if the exponent had more range. Numbers that round to it overflow.
    values_.push_back(values_.back() + (values_.back() - values_[values_.size() - 2]));
  }

  uint16_t operator()(float value) const {
    const double magnitude = std::fabs(static_cast<double>(value));
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    size_t index = static_cast<size_t>(above - values_.begin());
    if (above == values_.end()) {
      index = values_.size() - 1;
    } else if (*above != magnitude) {
      const double up = *above - magnitude;
      const double down = magnitude - values_[index - 1];
      if (down < up || (down == up && index % 2 == 1)) --index;
    }
    return static_cast<uint16_t>(index | (std::signbit(value) ? 0x8000u : 0u));
  }

 private:
  std::vector<double> values_;  // the i-th non-negative value has the bits i
};

void compare_over_all_magnitudes(uint16_t (*round)(float), float (*widen)(uint16_t)) {
  const NearestByTable nearest(widen);
  std::mt19937 generator(7);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(generator()));
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(round(value), nearest(value)) << value;
  }
  // Ties and their neighbours: the midpoint of two adjacent values, and the floats next to it.
  for (uint32_t bits = 0; bits < 0x7bffu; ++bits) {
    const float middle = static_cast<float>(
        0.5 * (static_cast<double>(widen(static_cast<uint16_t>(bits))) + widen(static_cast<uint16_t>(bits + 1))));
    for (float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, infinite), -middle}) {
      ASSERT_EQ(round(value), nearest(value)) << value;
    }
  }
}

TEST(DType, Bf16RoundsToNearestEven) { compare_over_all_magnitudes(float_to_bf16, bf16_to_float); }
TEST(DType, F16RoundsToNearestEven) { compare_over_all_magnitudes(float_to_f16, f16_to_float); }

TEST(DType, SixteenBitTypesRoundTripAllValues) {
  for (uint32_t i = 0; i <= 0xffffu; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    if (std::isnan(bf16_to_float(bits))) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(bf16_to_float(bits))))) << i;
    } else {
      ASSERT_EQ(float_to_bf16(bf16_to_float(bits)), bits);
    }
    if (std::isnan(f16_to_float(bits))) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(f16_to_float(bits))))) << i;
    } else {
      ASSERT_EQ(float_to_f16(f16_to_float(bits)), bits);
    }
  }
}

TEST(DType, SpecialValues) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0f);
  EXPECT_EQ(float_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(-infinite), 0xfc00);
  EXPECT_EQ(float_to_bf16(infinite), 0x7f80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  // A NaN whose payload lies only in the low half.
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(DType, ToFloatReadsUnalignedBytes) {
  const std::vector<double> values{1.5, -2.25, 1e300};
  std::vector<std::byte> bytes(values.size() * 8 + 1);
  std::memcpy(bytes.data() + 1, values.data(), values.size() * 8);
  std::vector<float> result(3);
  to_float(DType::f64, std::span(bytes).subspan(1), result);
  EXPECT_EQ(result, (std::vector<float>{1.5f, -2.25f, infinite}));
}

TEST(DType, FromFloatAndBack) {
  const std::vector<float> values{0.0f, 1.0f, -0.5f, 1024.0f};
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<float> result(values.size());
    to_float(dtype, from_float(values, dtype), result);
    EXPECT_EQ(result, values) << torch_name(dtype);
  }
  EXPECT_THROW(from_float(values, DType::i32), InternalError);
}

TEST(DType, NamesParseBack) {
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_safetensors_dtype(safetensors_name(dtype)), dtype);
  }
  EXPECT_EQ(parse_safetensors_dtype("F8_E4M3"), std::nullopt);
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    EXPECT_EQ(printed_float_name(torch_name(dtype)), printed_float_name(safetensors_name(dtype)));
    EXPECT_NE(printed_name(dtype), torch_name(dtype));
  }
  EXPECT_EQ(printed_name(DType::i64), "int64");
  EXPECT_EQ(size_of(DType::bf16), 2);
}

}  // namespace
}  // namespace copus
