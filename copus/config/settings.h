// Reads and writes TOML as sections of settings, each of which knows where it was written. Other files decide which
// sections and keys are allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace copus {

struct Setting {
  enum class Kind { boolean, integer, number, text, list, table, date };

  std::string name;    // the setting's key; empty in a list
  std::string origin;  // where it was written, for messages: "run.toml:12" or "--set train.lr=abc"
  Kind kind = Kind::table;
  std::variant<std::monostate, bool, int64_t, double, std::string> value;  // value of the first four kinds
  std::vector<Setting> children;                                           // items of a list or a table
  bool overrides = false;                                                  // whether --set gave the setting

  const Setting* find(std::string_view key) const;  // the child with that name, or null
};

// Describes a setting's value for messages: `the string "8"`, `a list`.
std::string describe(const Setting& setting);

// Parses a file and applies the overrides. Returns the root table, whose children are the sections. Each override
// "section.key=value" replaces or adds one setting. Its value is parsed as TOML; values that are not valid TOML are
// bare strings. Throws UserError for malformed TOML (with line and column) and for a malformed override.
Setting read_settings(std::string_view toml_text, const std::string& source, const std::vector<std::string>& overrides);

// Returns a setting's value as a path. Throws UserError, naming the setting `key`, if it is empty or no text.
std::string path_of(const Setting& setting, const std::string& key);

// Writes a TOML basic string: "C:\\text" for C:\text.
std::string quote(std::string_view text);

// Writes the shortest TOML float that reads back as `number`: 0.001, 1e-08, 3.0.
std::string write_number(double number);

}  // namespace copus
