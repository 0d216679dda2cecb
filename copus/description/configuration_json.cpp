#include "copus/description/configuration_json.h"

#include "copus/base/json_text.h"
#include "copus/description/configuration_fields.h"

namespace copus {

namespace {

using Field = ConfigurationField;

[[noreturn]] void reject(const Field& field, const std::string& expected) {
  throw UserError(concat("\"", field.name, "\" of a configuration is ", expected));
}

void read(const Field& field, const nlohmann::json& json, int64_t& value) {
  const std::optional<int64_t> integer = integer_of(json);
  if (!integer) reject(field, "not an integer of 64 bits");
  value = *integer;
  if (value < field.range.low) reject(field, concat("below ", field.range.low));
  if (value > field.range.high) reject(field, concat("above ", field.range.high));
}

void read(const Field& field, const nlohmann::json& json, bool& value) {
  if (!json.is_boolean()) reject(field, "not true or false");
  value = json.get<bool>();
}

template <HasNames Enum>
void read(const Field& field, const nlohmann::json& json, Enum& value) {
  const std::optional<Enum> found = json.is_string() ? find_value<Enum>(json.get<std::string>()) : std::nullopt;
  if (!found) reject(field, concat(json.dump(), ", which is not known"));
  value = *found;
}

}  // namespace

std::string to_json(const Configuration& configuration) {
  nlohmann::ordered_json object;
  const auto write = [&]<class Value>(const Field& field, const Value& value) {
    if constexpr (HasNames<Value>) {
      object[field.name] = to_string(value);
    } else {
      object[field.name] = value;
    }
  };
  visit_configuration(write, configuration);
  return object.dump();
}

Configuration configuration_from_json(std::string_view text) {
  const nlohmann::json object = parse_json(text);
  if (!object.is_object()) throw UserError("a configuration is not a JSON object");
  Configuration configuration;
  visit_configuration(
      [&](const Field& field, auto& value) {
        const auto place = object.find(field.name);
        if (place != object.end()) return read(field, *place, value);
        if (!is_later(field)) throw UserError(concat("a configuration has no \"", field.name, "\""));
      },
      configuration);
  return configuration;
}

}  // namespace copus
