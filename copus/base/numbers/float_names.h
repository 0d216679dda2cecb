// The names of floating-point types. Copus prints one of them and accepts all of them.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace copus {

struct FloatNames {
  std::string_view name;  // in options, settings and messages
  std::string_view torch, safetensors;
  std::string_view short_name;
};

inline constexpr std::array<FloatNames, 4> float_names{{
    {"fp32", "float32", "F32", "f32"},
    {"bf16", "bfloat16", "BF16", "bf16"},
    {"fp16", "float16", "F16", "f16"},
    {"fp64", "float64", "F64", "f64"},
}};

// Returns the printed name of the type that `name` names, or `name` itself if it names no type.
constexpr std::string_view printed_float_name(std::string_view name) {
  const auto* const found = std::ranges::find_if(float_names, [&](const FloatNames& names) {
    return name == names.name || name == names.torch || name == names.safetensors || name == names.short_name;
  });
  return found == float_names.end() ? name : found->name;
}

}  // namespace copus
