// Numbers that an optimizer keeps about its past updates, in addition to its slots. Checkpoints, re-layouts and
// recovery from failures preserve these numbers without knowing their meaning.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "copus/base/error.h"

namespace copus {

// Trivially copyable, because it is part of records and messages between processes.
class OptimizerScalars {
 public:
  class Scalar {
   public:
    std::string_view name() const { return name_.data(); }
    double value() const { return value_; }
    bool operator==(const Scalar&) const = default;

   private:
    friend OptimizerScalars;
    std::array<char, 24> name_ = {};
    double value_ = 0;
  };

  // Returns whether set() accepts this name: it is short enough, and is present or there is room for one more.
  bool can_hold(std::string_view name) const {
    const bool is_name = !name.empty() && name.size() < sizeof(Scalar::name_) && name.find('\0') == name.npos;
    return is_name && (find(name) || count_ < std::ssize(scalars_));
  }

  // Sets a scalar. Scalars are sorted by name.
  void set(std::string_view name, double value) {
    COPUS_CHECK(can_hold(name), name);
    const auto end = scalars_.begin() + count_;
    auto place = std::ranges::lower_bound(scalars_.begin(), end, name, {}, &Scalar::name);
    if (place == end || place->name() != name) {
      std::move_backward(place, end, end + 1);
      *place = {};
      std::ranges::copy(name, place->name_.begin());
      ++count_;
    }
    place->value_ = value;
  }

  std::optional<double> find(std::string_view name) const {
    for (const Scalar& scalar : all()) {
      if (scalar.name() == name) return scalar.value();
    }
    return std::nullopt;
  }

  std::span<const Scalar> all() const { return std::span(scalars_).first(static_cast<size_t>(count_)); }

  bool operator==(const OptimizerScalars&) const = default;

 private:
  std::array<Scalar, 4> scalars_ = {};
  int64_t count_ = 0;
};

}  // namespace copus
