#include "copus/model/layers/rotary_table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "copus/model/kernels/kernels.h"

namespace copus {

namespace {

// Returns the fraction of a frequency that Llama 3.1 keeps: from 0 for wavelengths beyond the original context to 1 for
// short wavelengths (transformers, modeling_rope_utils, rope_type "llama3").
double llama3_share(const RopeScaling& scaling, double frequency) {
  const double turns =
      static_cast<double>(scaling.original_max_position_embeddings) / (2 * std::numbers::pi / frequency);
  return (turns - scaling.low_frequency_factor) / (scaling.high_frequency_factor - scaling.low_frequency_factor);
}

// Returns the fraction of pair j's frequency that YaRN keeps. Between the pairs that make beta_fast and beta_slow turns
// within the original context, it is linear in j.
double yarn_share(const RopeScaling& scaling, double theta, int64_t rotary_dim, int64_t j) {
  const auto index_of = [&](double turns) {
    const double context = static_cast<double>(scaling.original_max_position_embeddings);
    return static_cast<double>(rotary_dim) * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  const double first = std::max(std::floor(index_of(scaling.high_frequency_factor)), 0.0);
  double last = std::min(std::ceil(index_of(scaling.low_frequency_factor)), static_cast<double>(rotary_dim - 1));
  if (last == first) last += 0.001;
  return 1 - std::clamp((static_cast<double>(j) - first) / (last - first), 0.0, 1.0);
}

bool has_two_lengths(const ModelDescription& model) {
  return model.rope_scaling && model.rope_scaling->type == RopeType::longrope;
}

// Returns the rescaled frequency of pair j.
double rescaled(const RopeScaling& scaling, double theta, int64_t rotary_dim, int64_t j, double frequency,
                bool is_long) {
  double share = 0;  // the kept fraction of the frequency
  switch (scaling.type) {
    case RopeType::llama3:
      share = llama3_share(scaling, frequency);
      break;
    case RopeType::linear:
      break;
    case RopeType::yarn:
      share = yarn_share(scaling, theta, rotary_dim, j);
      break;
    case RopeType::dynamic:
      return frequency;
    case RopeType::longrope:
      return frequency / (is_long ? scaling.long_factor : scaling.short_factor).at(static_cast<size_t>(j));
  }
  const double kept = std::clamp(share, 0.0, 1.0);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace

Rotation rotation_of(const ModelDescription& model, int64_t layer, int64_t sequence_length) {
  const bool is_own = model.has_sliding_rope(layer);
  const double theta = is_own ? model.sliding_rope_theta : model.rope_theta;
  const std::optional<RopeScaling> scaling = is_own ? std::nullopt : model.rope_scaling;
  Rotation rotation{{}, scaling ? scaling->attention_factor : 1.0};
  for (int64_t j = 0; j < model.rotary_dim() / 2; ++j) {
    const double exponent = static_cast<double>(2 * j) / static_cast<double>(model.rotary_dim());
    double frequency = static_cast<float>(1.0 / std::pow(theta, exponent));
    if (scaling) {
      const bool is_long = sequence_length > scaling->original_max_position_embeddings;
      frequency = rescaled(*scaling, theta, model.rotary_dim(), j, frequency, is_long);
    }
    rotation.frequencies.push_back(static_cast<float>(frequency));
  }
  return rotation;
}

RotaryTable::RotaryTable(const ModelDescription& model, at::ScalarType dtype, at::Device device)
    : dtype_(dtype), device_(device) {
  if (has_two_lengths(model)) longest_short_ = model.rope_scaling->original_max_position_embeddings;
  std::vector<int64_t> first_layers;  // by kind
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const auto alike = [&](int64_t first) { return model.has_sliding_rope(first) == model.has_sliding_rope(layer); };
    const auto found = std::ranges::find_if(first_layers, alike);
    kind_of_layer_.push_back(static_cast<size_t>(found - first_layers.begin()));
    if (found != first_layers.end()) continue;
    first_layers.push_back(layer);
    const int64_t longer = std::numeric_limits<int64_t>::max();
    kinds_.push_back({rotation_of(model, layer, 1), {}, {}});
    kinds_.push_back({rotation_of(model, layer, longer), {}, {}});
  }
}

RotaryTable::Rows RotaryTable::rows(int64_t layer, int64_t first, int64_t count) {
  const size_t pair = kind_of_layer_.at(static_cast<size_t>(layer));
  Kind& kind = kinds_.at(2 * pair + (first + count > longest_short_ ? 1 : 0));
  const int64_t length = kind.cosine.defined() ? kind.cosine.size(0) : 0;
  // At least doubles the table, because generation needs one more position per token.
  if (length < first + count) grow(kind, std::max(first + count, 2 * length));
  return {kind.cosine.narrow(0, first, count), kind.sine.narrow(0, first, count)};
}

std::vector<RotaryTable::Rows> RotaryTable::rows_of_layers(int64_t first_layer, int64_t layers, int64_t sequence,
                                                           const at::Tensor& positions) {
  std::vector<Rows> result;
  std::map<size_t, Rows> rows_of_kind;
  for (int64_t layer = first_layer; layer < first_layer + layers; ++layer) {
    const auto [found, is_new] = rows_of_kind.try_emplace(kind_of_layer_.at(static_cast<size_t>(layer)));
    Rows& of_kind = found->second;
    if (is_new) {
      of_kind = rows(layer, 0, sequence);
      if (positions.defined()) {
        of_kind = {kernels::embedding(of_kind.cosine, positions), kernels::embedding(of_kind.sine, positions)};
      }
    }
    result.push_back(of_kind);
  }
  return result;
}

void RotaryTable::grow(Kind& kind, int64_t length) const {
  const int64_t half = std::ssize(kind.rotation.frequencies);
  std::vector<double> cosine, sine;
  for (int64_t position = 0; position < length; ++position) {
    for (const float frequency : kind.rotation.frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      cosine.push_back(std::cos(static_cast<double>(angle)) * kind.rotation.factor);
      sine.push_back(std::sin(static_cast<double>(angle)) * kind.rotation.factor);
    }
  }
  kind.cosine = kernels::from_host(cosine.data(), {length, half}, dtype_, device_);
  kind.sine = kernels::from_host(sine.data(), {length, half}, dtype_, device_);
}

}  // namespace copus
