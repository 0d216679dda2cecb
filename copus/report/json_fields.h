// Writes and reads the members of a record as the fields of a JSON object. For each record, a function fields(record,
// visitor) calls visitor(name, member) for each field. Writing and reading both use this function. Only .cpp files of
// this directory and of copus/adviser may include this header, so that nlohmann/json stays out of all other headers.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/named_values.h"
#include "copus/base/numbers/range.h"
#include "copus/base/text/duration.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/text_distance.h"
#include "copus/description/configuration_text.h"
#include "copus/record/step_record.h"

namespace copus {

// Ranges of a log's numbers on which readers rely. They are checked, because an edited log may hold anything.
inline constexpr Range<int64_t> json_count{0, int64_t{1} << 62};
inline constexpr Range<int64_t> json_count_from_one{1, int64_t{1} << 62};
inline constexpr Range<double> json_not_negative{0.0};
inline constexpr Range<double> json_positive{.low = 0.0, .above_low = true};
inline constexpr Range<double> json_seconds{0.0, longest_duration};

// The range of a number that may also be null, which means NaN.
struct OrNull {
  Range<double> range;
};

// The member of an object with this name. Throws UserError if there is none.
inline const nlohmann::json& json_member(const nlohmann::json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (found == object.end()) throw UserError(concat("it has no \"", name, "\""));
  return *found;
}

// Writes the fields in the order of the list. JSON has no NaN or infinity; the library writes null for both.
class JsonFieldWriter {
 public:
  template <class Value>
  void operator()(const char* name, const Value& value) {
    append(name, value);
  }
  template <class Value>
  void operator()(const char* name, const std::optional<Value>& value) {
    if (value) {
      (*this)(name, *value);
    } else {
      append(name, nullptr);
    }
  }
  template <HasNames Enum>
  void operator()(const char* name, const Enum& value) {
    append(name, to_string(value));
  }
  void operator()(const char* name, const ParallelStrategy& value) { append(name, to_string(value)); }
  void operator()(const char* name, const Configuration& value) { append(name, to_string(value)); }
  // Writes a number. Only the reader checks its range.
  template <class Value, class Number>
  void operator()(const char* name, const Value& value, const Range<Number>&) {
    (*this)(name, value);
  }
  void operator()(const char* name, double value, const OrNull&) { (*this)(name, value); }

  // Writes losses as an object with a field per source; null if there are none.
  void operator()(const char* name, const std::vector<SourceLoss>& losses) {
    nlohmann::ordered_json& field = object_[name];
    for (const SourceLoss& one : losses) field[one.source] = one.loss;
  }

  const nlohmann::ordered_json& object() const { return object_; }

 private:
  // Appends a field without checking for duplicates, because fields() names each field once. object_[name] would search
  // all fields, for every line of a log.
  template <class Value>
  void append(const char* name, const Value& value) {
    object_.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(name, value);
  }

  nlohmann::ordered_json object_ = nlohmann::ordered_json::object();
};

// Reads the listed fields and ignores all other fields of the object. Throws a UserError that names a missing field or
// a field of the wrong type. A null means NaN or an empty optional. An optional field may be missing.
class JsonFieldReader {
 public:
  explicit JsonFieldReader(const nlohmann::json& object) : object_(object) {
    if (!object.is_object()) throw UserError("it is not a JSON object");
  }

  void operator()(const char* name, int64_t& value) const {
    const std::optional<int64_t> integer = integer_of(find(name));
    if (!integer) reject(name, "an integer of 64 bits");
    value = *integer;
  }
  void operator()(const char* name, std::string& value) const {
    const auto& field = find(name);
    if (!field.is_string()) reject(name, "a string");
    value = field.get<std::string>();
  }
  void operator()(const char* name, bool& value) const {
    const auto& field = find(name);
    if (!field.is_boolean()) reject(name, "true or false");
    value = field.get<bool>();
  }
  void operator()(const char* name, double& value) const { value = number(name, find(name)); }
  void operator()(const char* name, ParallelStrategy& value) const { parse(name, value, parse_strategy); }
  void operator()(const char* name, Configuration& value) const { parse(name, value, parse_configuration); }
  template <HasNames Enum>
  void operator()(const char* name, Enum& value) const {
    const auto& field = find(name);
    const std::optional<Enum> known = field.is_string() ? find_value<Enum>(field.get<std::string>()) : std::nullopt;
    if (!known) reject(name, concat("one of \"", join(all_names<Enum>(), "\", \""), "\"").c_str());
    value = *known;
  }
  template <class Value>
  void operator()(const char* name, std::optional<Value>& value) const {
    value.reset();
    if (const auto field = object_.find(name); field != object_.end() && !field->is_null()) {
      (*this)(name, value.emplace());
    }
  }
  // Reads a number that must be in this range and must not be null. If it is optional, it may be missing.
  template <class Number>
  void operator()(const char* name, Number& value, const Range<Number>& range) const {
    (*this)(name, value);
    if (!range.contains(value)) reject(name, describe(range).c_str());
  }
  void operator()(const char* name, double& value, const OrNull& range) const {
    (*this)(name, value);
    if (!std::isnan(value) && !range.range.contains(value)) reject(name, describe(range.range).c_str());
  }
  template <class Number>
  void operator()(const char* name, std::optional<Number>& value, const Range<Number>& range) const {
    (*this)(name, value);
    if (value && !range.contains(*value)) reject(name, describe(range).c_str());
  }
  void operator()(const char* name, std::vector<double>& values) const {
    const auto& field = find(name);
    if (!field.is_array()) reject(name, "a list of numbers");
    values.clear();
    for (const auto& value : field) values.push_back(number(name, value));
  }
  void operator()(const char* name, std::vector<SourceLoss>& losses) const {
    losses.clear();
    const auto field = object_.find(name);
    if (field == object_.end() || field->is_null()) return;
    if (!field->is_object()) reject(name, "an object of numbers");
    for (const auto& [source, loss] : field->items()) losses.push_back({source, number(name, loss)});
  }

 private:
  [[noreturn]] static void reject(const char* name, const char* expected) {
    throw UserError(concat("\"", name, "\" is not ", expected));
  }

  template <class Value>
  void parse(const char* name, Value& value, Value (*parsed)(std::string_view)) const {
    std::string text;
    (*this)(name, text);
    try {
      value = parsed(text);
    } catch (const UserError& error) {
      throw UserError(concat("\"", name, "\": ", error.what()));
    }
  }

  const nlohmann::json& find(const char* name) const { return json_member(object_, name); }

  static double number(const char* name, const nlohmann::json& field) {
    if (field.is_null()) return std::numeric_limits<double>::quiet_NaN();
    if (!field.is_number()) reject(name, "a number");
    return field.get<double>();
  }

  const nlohmann::json& object_;
};

}  // namespace copus
