// Element types of stored tensors, their names in safetensors, and conversions between floating-point types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace copus {

enum class DType { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

// Number of bytes of one element.
int64_t size_of(DType dtype);

// Name that safetensors uses: "F32", "BF16", "BOOL", ...
std::string_view safetensors_name(DType dtype);
std::optional<DType> parse_safetensors_dtype(std::string_view name);

// Name that PyTorch and config.json use: "float32", "bfloat16", "bool", ...
std::string_view torch_name(DType dtype);

// Name that people read and write: "fp32", "bf16", "int64", ...
std::string_view printed_name(DType dtype);

bool is_floating_point(DType dtype);

// Converts a float to the bits of a bfloat16 or an IEEE half. Rounds to nearest, ties to even; overflow gives infinity,
// and NaN stays NaN.
uint16_t float_to_bf16(float value);
uint16_t float_to_f16(float value);

// Converts back, exactly.
float bf16_to_float(uint16_t bits);
float f16_to_float(uint16_t bits);

// Converts elements of `dtype` (f64, f32, f16 or bf16), not necessarily aligned, to floats. Rounds f64 to nearest.
// `destination` has as many elements as `bytes` holds.
void to_float(DType dtype, std::span<const std::byte> bytes, std::span<float> destination);

// Converts floats to elements of `dtype` (f32, f16 or bf16).
std::vector<std::byte> from_float(std::span<const float> values, DType dtype);

}  // namespace copus
