#include "copus/orchestrator/controller/input_hash.h"

#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "copus/description/configuration_fields.h"

namespace copus {

namespace {
constexpr size_t most_words = 1024;

// The first letters of a field's symbol. They still identify the field after other fields have been added.
int64_t name_as_word(const ConfigurationField& field) {
  uint64_t word = 0;
  for (size_t i = 0; i < sizeof(word) && field.symbol[i] != 0; ++i) {
    word = word << 8 | static_cast<unsigned char>(field.symbol[i]);
  }
  return static_cast<int64_t>(word);
}
}  // namespace

void InputHash::add(double value) {
  words_.push_back(std::bit_cast<uint64_t>(std::isfinite(value) ? value : std::numeric_limits<double>::quiet_NaN()));
  if (words_.size() >= most_words) flush();
}

void InputHash::add(int64_t value) {
  words_.push_back(static_cast<uint64_t>(value));
  if (words_.size() >= most_words) flush();
}

void InputHash::add(const std::optional<double>& value) {
  add(int64_t{value.has_value()});
  add(value.value_or(0));
}

void InputHash::add(const Configuration& configuration) {
  constexpr Configuration plain;
  visit_configuration(
      [&](const ConfigurationField& field, const auto& value, const auto& by_default) {
        if (value == by_default) return;
        add(name_as_word(field));
        add(static_cast<int64_t>(value));
      },
      configuration, plain);
  add(int64_t{0});  // no field's name: the end
}

void InputHash::add(const Observation& observation) {
  add(observation.step);
  add(observation.consumed_samples);
  for (const double value : {observation.loss, observation.grad_norm, observation.step_seconds,
                             observation.elapsed_seconds, observation.learning_rate, observation.seconds_left}) {
    add(value);
  }
  for (const auto& value : {observation.small_batch, observation.small_batch_squared_norm, observation.noise_scale,
                            observation.noise_scale_low, observation.noise_scale_high, observation.share_done}) {
    add(value);
  }
  add(int64_t{observation.phase ? static_cast<int>(*observation.phase) : -1});
  add(int64_t{observation.clipped.has_value()});
  add(int64_t{observation.clipped.value_or(false)});
}

uint64_t InputHash::value() {
  flush();
  return std::stoull(hasher_.hex().substr(0, 16), nullptr, 16);
}

void InputHash::restart_from(uint64_t value) {
  hasher_ = Hasher();
  words_ = {value};
}

void InputHash::flush() {
  hasher_.update(std::as_bytes(std::span(words_)));
  words_.clear();
}

}  // namespace copus
