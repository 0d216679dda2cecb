// Reads the fields of config.json's objects, and checks their types and ranges. Only this room's sources include this
// header.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "copus/base/error.h"
#include "copus/base/numbers/range.h"

namespace copus {

inline constexpr int64_t max_positions = std::numeric_limits<int32_t>::max();

// Describes a JSON value for messages: `the string "4096"`.
std::string describe(const nlohmann::json& value);

// Parses a config.json. Throws UserError with the position if the text is not a JSON object.
nlohmann::json parse_config_object(std::string_view text, const std::string& source);

struct FieldAlias {
  const char* alias;
  const char* name;
};

// The fields of one JSON object. A null field counts as absent.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string where) : object_(&object), where_(std::move(where)) {}

  // Accepts these synonyms of fields from now on.
  void accept(std::span<const FieldAlias> aliases) { aliases_ = aliases; }

  const nlohmann::json& object() const { return *object_; }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw UserError(concat(where_, ": ", parts...));
  }

  bool contains(const char* name) const { return object_->contains(key(name)); }

  const nlohmann::json* find(const char* name) const {
    const auto field = object_->find(key(name));
    return field == object_->end() || field->is_null() ? nullptr : &*field;
  }

  std::optional<int64_t> integer(const char* name, int64_t highest, int64_t lowest = 1) const {
    const nlohmann::json* field = find(name);
    if (!field) return std::nullopt;
    // Some tools write whole numbers as floats: 128256.0. A double is exact up to `highest`.
    const bool is_whole_float = field->is_number_float() && std::trunc(field->get<double>()) == field->get<double>();
    if (!field->is_number_integer() && !is_whole_float) {
      fail("\"", key(name), "\" must be a whole number, got ", describe(*field));
    }
    if (field->get<double>() < static_cast<double>(lowest) || field->get<double>() > static_cast<double>(highest)) {
      fail("\"", key(name), "\" must be between ", lowest, " and ", highest, ", got ", describe(*field));
    }
    return field->get<int64_t>();
  }

  int64_t required_integer(const char* name, int64_t highest) const {
    const std::optional<int64_t> value = integer(name, highest);
    if (!value) fail("\"", name, "\" is missing; the model's shape needs it (a whole number)");
    return *value;
  }

  std::optional<double> positive_number(const char* name) const {
    const std::optional<double> value = number(name);
    if (value && !single_precision.contains(*value)) {
      fail("\"", key(name), "\" must be ", copus::describe(single_precision), ", got ", describe(*find(name)));
    }
    return value;
  }

  std::optional<double> number(const char* name) const {
    const nlohmann::json* field = find(name);
    if (!field) return std::nullopt;
    if (!field->is_number()) fail("\"", key(name), "\" must be a number, got ", describe(*field));
    if (!std::isfinite(field->get<double>())) fail("\"", key(name), "\" must be finite, got ", describe(*field));
    return field->get<double>();
  }

  double required_positive_number(const char* name) const {
    const std::optional<double> value = positive_number(name);
    if (!value) fail("\"", name, "\" is missing (a number)");
    return *value;
  }

  bool boolean(const char* name, bool fallback = false) const {
    const nlohmann::json* field = find(name);
    if (field && !field->is_boolean()) fail("\"", name, "\" must be true or false, got ", describe(*field));
    return field ? field->get<bool>() : fallback;
  }

  std::optional<std::string> text(const char* name) const {
    const nlohmann::json* field = find(name);
    if (!field) return std::nullopt;
    if (!field->is_string()) fail("\"", name, "\" must be a string, got ", describe(*field));
    return field->get<std::string>();
  }

  std::optional<Fields> fields(const char* name) const {
    const nlohmann::json* field = find(name);
    if (!field) return std::nullopt;
    if (!field->is_object()) fail("\"", name, "\" must be an object, got ", describe(*field));
    return Fields(*field, concat(where_, ": ", name));
  }

  // Returns the name or synonym that the object uses for a field.
  const char* key(const char* name) const {
    const auto alias = std::ranges::find(aliases_, std::string_view(name), &FieldAlias::name);
    return alias != aliases_.end() && object_->contains(alias->alias) ? alias->alias : name;
  }

 private:
  const nlohmann::json* object_;
  std::string where_;
  std::span<const FieldAlias> aliases_;
};

}  // namespace copus
