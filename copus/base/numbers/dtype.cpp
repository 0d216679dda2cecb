#include "copus/base/numbers/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "copus/base/error.h"
#include "copus/base/numbers/float_names.h"

namespace copus {
namespace {

struct DTypeInfo {
  DType dtype;
  int64_t bytes;
  std::string_view safetensors_name;
  std::string_view torch_name;
};

// Properties of the types, in the order of the enumeration.
constexpr std::array<DTypeInfo, 10> dtype_table{{
    {DType::f64, 8, "F64", "float64"},
    {DType::f32, 4, "F32", "float32"},
    {DType::f16, 2, "F16", "float16"},
    {DType::bf16, 2, "BF16", "bfloat16"},
    {DType::i64, 8, "I64", "int64"},
    {DType::i32, 4, "I32", "int32"},
    {DType::i16, 2, "I16", "int16"},
    {DType::i8, 1, "I8", "int8"},
    {DType::u8, 1, "U8", "uint8"},
    {DType::boolean, 1, "BOOL", "bool"},
}};

const DTypeInfo& info_of(DType dtype) { return dtype_table.at(static_cast<size_t>(dtype)); }

// Applies `convert` to every element. The bytes hold elements of type Element and need not be aligned.
template <class Element, class Convert>
void convert_elements(std::span<const std::byte> bytes, std::span<float> destination, Convert convert) {
  for (size_t i = 0; i < destination.size(); ++i) {
    Element element;
    std::memcpy(&element, bytes.data() + i * sizeof(Element), sizeof(Element));
    destination[i] = convert(element);
  }
}

template <class Convert>
std::vector<std::byte> convert_to_16_bits(std::span<const float> values, Convert convert) {
  std::vector<std::byte> bytes(values.size() * sizeof(uint16_t));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = convert(values[i]);
    std::memcpy(bytes.data() + i * sizeof bits, &bits, sizeof bits);
  }
  return bytes;
}

}  // namespace

int64_t size_of(DType dtype) { return info_of(dtype).bytes; }

std::string_view safetensors_name(DType dtype) { return info_of(dtype).safetensors_name; }
std::string_view torch_name(DType dtype) { return info_of(dtype).torch_name; }
std::string_view printed_name(DType dtype) { return printed_float_name(torch_name(dtype)); }

std::optional<DType> parse_safetensors_dtype(std::string_view name) {
  const auto found = std::ranges::find(dtype_table, name, &DTypeInfo::safetensors_name);
  return found == dtype_table.end() ? std::nullopt : std::optional(found->dtype);
}

bool is_floating_point(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Keeps a NaN's sign and makes it quiet: dropping the low half could leave an empty mantissa, which means infinity.
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  // Adds half a unit, or one less if the kept part is even, so that exact ties go to even.
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 2^16: infinity
  if (magnitude < 0x38800000u) {
    // Subnormal halves, below 2^-14. Adding 0.5 makes the processor round to multiples of 2^-24, the spacing of
    // subnormal halves, because floats near 0.5 are that far apart. The bit patterns of the sum and of 0.5 differ by
    // the bits of the half.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
  }
  // Normal halves: exponent bias 127 -> 15, mantissa 23 -> 10 bits, ties to even. A carry propagates into the exponent
  // and gives infinity beyond the largest half.
  const uint32_t rebiased = magnitude - ((127u - 15u) << 23);
  return static_cast<uint16_t>(sign | ((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13));
}

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float f16_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 127u - 15u) << 23) | (mantissa << 13));
}

void to_float(DType dtype, std::span<const std::byte> bytes, std::span<float> destination) {
  COPUS_CHECK(bytes.size() == destination.size() * static_cast<size_t>(size_of(dtype)), bytes.size(), " bytes for ",
              destination.size(), " elements");
  if (bytes.empty()) return;
  switch (dtype) {
    case DType::f64:
      return convert_elements<double>(bytes, destination, [](double value) { return static_cast<float>(value); });
    case DType::f32:
      std::memcpy(destination.data(), bytes.data(), bytes.size());
      return;
    case DType::f16:
      return convert_elements<uint16_t>(bytes, destination, f16_to_float);
    case DType::bf16:
      return convert_elements<uint16_t>(bytes, destination, bf16_to_float);
    default:
      COPUS_CHECK(false, "no floating-point type: ", torch_name(dtype));
  }
}

std::vector<std::byte> from_float(std::span<const float> values, DType dtype) {
  if (dtype == DType::bf16) return convert_to_16_bits(values, float_to_bf16);
  if (dtype == DType::f16) return convert_to_16_bits(values, float_to_f16);
  COPUS_CHECK(dtype == DType::f32, "no conversion from float to ", torch_name(dtype));
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

}  // namespace copus
