#include "copus/base/text/json_text.h"

#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "copus/base/error.h"

namespace copus {

namespace {

// Stops the parser at the first name that its object already has.
class NamesOnce : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::optional<std::string> repeated() && { return std::move(repeated_); }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool start_object(size_t) override {
    open_.emplace_back();
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    if (open_.back().insert(name).second) return true;
    repeated_ = std::move(name);
    return false;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  std::vector<std::unordered_set<std::string>> open_;  // names in the objects around the current place
  std::optional<std::string> repeated_;
};

// Calls `take` with each character outside strings until `take` returns false.
template <class Take>
void for_each_sign(std::string_view json, const Take& take) {
  bool is_in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char character = json[i];
    if (is_in_string) {
      if (character == '\\') ++i;  // the escaped character does not end the string
      if (character == '"') is_in_string = false;
    } else if (character == '"') {
      is_in_string = true;
    } else if (!take(character)) {
      return;
    }
  }
}

size_t names_in(const nlohmann::json& value) {
  size_t names = value.is_object() ? value.size() : 0;
  if (value.is_structured()) {
    for (const nlohmann::json& each : value) names += names_in(each);
  }
  return names;
}

}  // namespace

bool nests_too_deeply(std::string_view json) {
  int depth = 0;
  for_each_sign(json, [&](char sign) {
    if (sign == '[' || sign == '{') ++depth;
    if (sign == ']' || sign == '}') --depth;
    return depth <= deepest_json;
  });
  return depth > deepest_json;
}

bool repeats_names(std::string_view json, const nlohmann::json& parsed) {
  size_t names = 0;  // one colon follows each name; there are no others
  for_each_sign(json, [&](char sign) {
    names += sign == ':';
    return true;
  });
  return names > names_in(parsed);
}

nlohmann::json parse_json(std::string_view text) {
  if (nests_too_deeply(text)) return nlohmann::json::value_t::discarded;
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::optional<std::string> repeated_name(std::string_view json) {
  NamesOnce names;
  nlohmann::json::sax_parse(json, &names);
  return std::move(names).repeated();
}

std::optional<int64_t> integer_of(const nlohmann::json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  constexpr auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (value.is_number_unsigned() && value.get<uint64_t>() > most) return std::nullopt;
  return value.get<int64_t>();
}

void check_version(const nlohmann::json& object, int64_t version) {
  const auto found = object.is_object() ? object.find("version") : object.end();
  if (found != object.end() && *found == version) return;
  throw UserError(concat(
      found == object.end() ? "its format says no \"version\"" : concat("its format is of version ", found->dump()),
      ", and this Copus reads version ", version, " alone"));
}

}  // namespace copus
