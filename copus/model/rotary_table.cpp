#include "copus/model/rotary_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "copus/model/kernels.h"

namespace copus {

std::vector<float> rotary_frequencies(const ModelDescription& model) {
  std::vector<float> frequencies;
  for (int64_t j = 0; j < model.head_dim / 2; ++j) {
    const double exponent = static_cast<double>(2 * j) / static_cast<double>(model.head_dim);
    double frequency = static_cast<float>(1.0 / std::pow(model.rope_theta, exponent));
    if (model.rope_scaling) {
      // Llama 3.1: wavelengths beyond the original context are stretched by `factor`, short ones kept, and those
      // between blended (transformers, modeling_rope_utils, rope_type "llama3").
      const Llama3RopeScaling& scaling = *model.rope_scaling;
      const double context = static_cast<double>(scaling.original_max_position_embeddings);
      const double wavelength = 2 * std::numbers::pi / frequency;
      const double blend = (context / wavelength - scaling.low_frequency_factor) /
                           (scaling.high_frequency_factor - scaling.low_frequency_factor);
      const double kept = std::clamp(blend, 0.0, 1.0);
      frequency = (1 - kept) * frequency / scaling.factor + kept * frequency;
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

RotaryTable::RotaryTable(const ModelDescription& model, at::ScalarType dtype, at::Device device)
    : frequencies_(rotary_frequencies(model)), dtype_(dtype), device_(device) {}

RotaryTable::Rows RotaryTable::rows(int64_t first, int64_t count) {
  const int64_t length = cosine_.defined() ? cosine_.size(0) : 0;
  // The table is at least doubled, since generation asks for one more position a token.
  if (length < first + count) grow(std::max(first + count, 2 * length));
  return {cosine_.narrow(0, first, count), sine_.narrow(0, first, count)};
}

void RotaryTable::grow(int64_t length) {
  const int64_t half = std::ssize(frequencies_);
  std::vector<double> cosine, sine;
  for (int64_t position = 0; position < length; ++position) {
    for (const float frequency : frequencies_) {
      const float angle = static_cast<float>(position) * frequency;
      cosine.push_back(std::cos(static_cast<double>(angle)));
      sine.push_back(std::sin(static_cast<double>(angle)));
    }
  }
  cosine_ = kernels::from_host(cosine.data(), {length, half}, dtype_, device_);
  sine_ = kernels::from_host(sine.data(), {length, half}, dtype_, device_);
}

}  // namespace copus
