// Enumerations whose values people read and write by name. Each has one table of names, next to its definition.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "copus/base/error.h"

namespace copus {

template <class Enum>
struct NamedValue {
  Enum value;
  std::string_view name;
};

// Lists the values with their names, in the order in which messages list them. An enumeration that specialises this
// template can use the functions below.
template <class Enum>
inline constexpr std::array<NamedValue<Enum>, 0> named_values{};

template <class Enum>
concept HasNames = std::is_enum_v<Enum> && !named_values<Enum>.empty();

template <HasNames Enum>
std::string_view to_string(Enum value) {
  const auto& all = named_values<Enum>;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.value == value; });
  COPUS_CHECK(found != all.end(), "a value without a name: ", static_cast<int64_t>(value));
  return found->name;
}

// Finds the value with this name; empty if there is none.
template <HasNames Enum>
std::optional<Enum> find_value(std::string_view name) {
  for (const auto& one : named_values<Enum>) {
    if (one.name == name) return one.value;
  }
  return std::nullopt;
}

template <HasNames Enum>
std::vector<Enum> all_values() {
  std::vector<Enum> values;
  for (const auto& one : named_values<Enum>) values.push_back(one.value);
  return values;
}

template <HasNames Enum>
std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const auto& one : named_values<Enum>) names.emplace_back(one.name);
  return names;
}

}  // namespace copus
