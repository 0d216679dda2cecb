#include "copus/config/settings.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "copus/base/error.h"

namespace copus {

namespace {

// The largest number of dot-separated parts of a key. toml++ limits the nesting of values but not of keys, and converts
// and deletes the resulting tables recursively.
constexpr int most_parts_of_key = 8;

// Returns the end of the string that begins at `begin`: after its closing quote or, if it is not closed, at the end of
// the line.
size_t end_of_string(std::string_view toml, size_t begin) {
  const char quote = toml[begin];
  const std::string three_quotes(3, quote);  // these delimit multi-line strings
  const bool is_long = toml.substr(begin).starts_with(three_quotes);
  for (size_t i = begin + (is_long ? 3 : 1); i < toml.size(); ++i) {
    if (toml[i] == '\\' && quote == '"') {
      ++i;  // the escaped character does not end the string
    } else if (is_long && toml.substr(i).starts_with(three_quotes)) {
      return std::min(toml.find_first_not_of(quote, i), toml.size());  // the string itself may end with quotes
    } else if (!is_long && (toml[i] == quote || toml[i] == '\n')) {
      return toml[i] == quote ? i + 1 : i;
    }
  }
  return toml.size();
}

// Returns the line, counted from 1, of the first key with too many parts. Scans characters instead of parsing, because
// deleting the parsed tables could overflow the stack.
std::optional<int64_t> line_of_long_key(std::string_view toml) {
  constexpr std::string_view between_keys = "=,[]{}\n";
  int parts = 1;
  for (size_t i = 0; i < toml.size();) {
    const char character = toml[i];
    if (character == '"' || character == '\'') {
      i = end_of_string(toml, i);
      continue;
    }
    if (character == '#') {
      i = std::min(toml.find('\n', i), toml.size());
      continue;
    }
    if (character == '.') ++parts;
    if (between_keys.find(character) != std::string_view::npos) parts = 1;
    if (parts > most_parts_of_key) {
      return 1 + std::count(toml.begin(), toml.begin() + static_cast<std::ptrdiff_t>(i), '\n');
    }
    ++i;
  }
  return std::nullopt;
}

// Converts TOML nodes to settings. The origin of settings is `fixed_origin` (for overrides) or, if that is empty, their
// line in `source`.
class Converter {
 public:
  Converter(std::string source, std::string fixed_origin)
      : source_(std::move(source)), fixed_origin_(std::move(fixed_origin)) {}

  Setting convert(std::string name, const toml::node& node) const {
    Setting setting;
    setting.name = std::move(name);
    setting.origin = fixed_origin_.empty() ? concat(source_, ":", node.source().begin.line) : fixed_origin_;
    setting.overrides = !fixed_origin_.empty();
    if (const toml::table* table = node.as_table()) {
      setting.kind = Setting::Kind::table;
      for (const auto& [key, child] : *table) setting.children.push_back(convert(std::string(key.str()), child));
    } else if (const toml::array* array = node.as_array()) {
      setting.kind = Setting::Kind::list;
      for (const toml::node& child : *array) setting.children.push_back(convert("", child));
    } else if (const auto* boolean = node.as_boolean()) {
      setting.kind = Setting::Kind::boolean;
      setting.value = boolean->get();
    } else if (const auto* integer = node.as_integer()) {
      setting.kind = Setting::Kind::integer;
      setting.value = integer->get();
    } else if (const auto* number = node.as_floating_point()) {
      setting.kind = Setting::Kind::number;
      setting.value = number->get();
    } else if (const auto* text = node.as_string()) {
      setting.kind = Setting::Kind::text;
      setting.value = text->get();
    } else {
      setting.kind = Setting::Kind::date;
    }
    return setting;
  }

 private:
  std::string source_;
  std::string fixed_origin_;
};

// Parses the value of an override as TOML; empty if it is not valid TOML.
std::optional<Setting> parse_value(const std::string& key, std::string_view value, const std::string& origin) {
  if (line_of_long_key(value)) return std::nullopt;
  try {
    const toml::table table = toml::parse(concat("value = ", value));
    if (table.size() != 1) return std::nullopt;  // a line break in the value could add more keys
    return Converter("", origin).convert(key, *table.get("value"));
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

Setting& find_or_add(Setting& table, const Setting& child) {
  const auto place = std::find_if(table.children.begin(), table.children.end(),
                                  [&](const Setting& existing) { return existing.name == child.name; });
  return place != table.children.end() ? *place : table.children.emplace_back(child);
}

void apply_override(Setting& root, const std::string& text) {
  const std::string origin = concat("--set ", text);
  const size_t equals = text.find('=');
  const std::string path = text.substr(0, equals);
  const size_t dot = path.find('.');
  const bool has_section_and_key =
      dot != std::string::npos && dot > 0 && dot + 1 < path.size() && path.find('.', dot + 1) == std::string::npos;
  if (equals == std::string::npos || !has_section_and_key) {
    throw UserError(concat(origin, ": expected section.key=value, for example --set optimizer.lr=1e-3"));
  }
  const std::string key = path.substr(dot + 1);
  const std::string value = text.substr(equals + 1);
  std::optional<Setting> setting = parse_value(key, value, origin);
  if (!setting) setting = parse_value(key, quote(value), origin);
  if (!setting) throw UserError(concat(origin, ": the value is not UTF-8 text"));

  Setting section;
  section.name = path.substr(0, dot);
  section.origin = origin;
  Setting& place = find_or_add(root, section);
  if (place.kind != Setting::Kind::table) {
    throw UserError(
        concat(place.origin, ": ", place.name, " must be a section, [", place.name, "], got ", describe(place)));
  }
  find_or_add(place, *setting) = *setting;
}

}  // namespace

std::string quote(std::string_view text) {
  constexpr std::string_view hexadecimal = "0123456789abcdef";
  std::string result = "\"";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '"' || character == '\\') {
      result += {'\\', character};
    } else if (character == '\n') {
      result += "\\n";
    } else if (character == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {  // TOML allows other control characters only as \uXXXX
      result += concat("\\u00", hexadecimal[byte >> 4], hexadecimal[byte & 15]);
    } else {
      result += character;
    }
  }
  return result + "\"";
}

std::string write_number(double number) {
  std::array<char, 32> buffer;  // the longest double, -2.2250738585072014e-308, has 24 characters
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  COPUS_CHECK(error == std::errc(), "a double that needs more than 32 characters");
  std::string text(buffer.data(), end);
  if (text.find_first_of(".enf") == std::string::npos) text += ".0";  // TOML would read "3" as an integer
  return text;
}

const Setting* Setting::find(std::string_view key) const {
  const auto place =
      std::find_if(children.begin(), children.end(), [&](const Setting& child) { return child.name == key; });
  return place != children.end() ? &*place : nullptr;
}

std::string describe(const Setting& setting) {
  switch (setting.kind) {
    case Setting::Kind::boolean:
      return std::get<bool>(setting.value) ? "true" : "false";
    case Setting::Kind::integer:
      return concat(std::get<int64_t>(setting.value));
    case Setting::Kind::number:
      return write_number(std::get<double>(setting.value));
    case Setting::Kind::text:
      return concat("the string ", quote(std::get<std::string>(setting.value)));
    case Setting::Kind::list:
      return "a list";
    case Setting::Kind::table:
      return "a table";
    case Setting::Kind::date:
      return "a date or time";
  }
  fail_check("known kind", __FILE__, __LINE__, "");
}

Setting read_settings(std::string_view toml_text, const std::string& source,
                      const std::vector<std::string>& overrides) {
  if (const std::optional<int64_t> line = line_of_long_key(toml_text)) {
    throw UserError(concat(source, ":", *line, ": a key has more than ", most_parts_of_key,
                           " parts; expected [section] and key = value"));
  }
  Setting root;
  try {
    root = Converter(source, "").convert("", toml::parse(toml_text));
  } catch (const toml::parse_error& error) {
    const size_t first = toml_text.find_first_not_of(" \t\r\n");
    const bool is_json = first != std::string_view::npos && toml_text[first] == '{';
    throw UserError(concat(source, ":", error.source().begin.line, ":", error.source().begin.column,
                           ": not valid TOML: ", error.description(), is_json ? "; this looks like JSON" : "",
                           "; expected [section], and key = value with texts in quotes"));
  }
  for (const std::string& text : overrides) apply_override(root, text);
  return root;
}

std::string path_of(const Setting& setting, const std::string& key) {
  if (setting.kind != Setting::Kind::text || std::get<std::string>(setting.value).empty()) {
    throw UserError(concat(setting.origin, ": ", key, " must be a path (a string), got ", describe(setting)));
  }
  return std::get<std::string>(setting.value);
}

}  // namespace copus
