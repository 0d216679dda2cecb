// Tests that docs/configuration.md lists every key with its default in the code.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "copus/base/error.h"
#include "copus/config/run_config_fields.h"

namespace copus {
namespace {

// Returns the cells of a line like: | `key` | type | default | meaning |
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (size_t begin = 2; begin < line.size();) {
    const size_t end = line.find(" | ", begin);
    cells.push_back(line.substr(begin, end - begin));
    begin = end == std::string::npos ? line.size() : end + 3;
  }
  return cells;
}

// Maps "section.key" to the cell with its default.
std::map<std::string, std::string> documented_defaults() {
  std::ifstream file(COPUS_SOURCE "/docs/configuration.md");
  EXPECT_TRUE(file);
  std::map<std::string, std::string> defaults;
  std::string section;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## [")) section = line.substr(4, line.find(']') - 4);
    if (!line.starts_with("| `")) continue;
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() != 4) {
      ADD_FAILURE() << "not four cells: " << line;
      continue;
    }
    defaults[concat(section, ".", cells[0].substr(1, cells[0].size() - 2))] = cells[2];
  }
  return defaults;
}

// Joins the lines of a list into one line.
std::string in_one_line(std::string value) {
  for (const auto& [lines, line] : {std::pair("[\n  ", "["), {",\n]", "]"}, {",\n  ", ", "}}) {
    for (size_t at; (at = value.find(lines)) != std::string::npos;) value.replace(at, std::strlen(lines), line);
  }
  return value;
}

TEST(Documentation, ListsExactlyTheKeysThatExist) {
  std::set<std::string> documented;
  for (const auto& [key, unused] : documented_defaults()) documented.insert(key);
  const std::vector<std::string> keys = run_config_keys();
  EXPECT_EQ(documented, std::set<std::string>(keys.begin(), keys.end()));
}

TEST(Documentation, StatesTheDefaultsThatTheCodeHas) {
  const std::map<std::string, std::string> documented = documented_defaults();
  for (const auto& [kind, unused] : named_values<OptimizerKind>) {
    RunConfig config;
    config.optimizer.kind = kind;
    for (const WrittenField& field : write_fields(config)) {
      const std::string key = concat(field.section, ".", field.key);
      // These keys have no default, or one that follows from other keys.
      if (field.section == "model" || key == "data.train" || key == "optimizer.kind") continue;
      ASSERT_TRUE(documented.contains(key)) << key;
      EXPECT_EQ(documented.at(key), concat("`", in_one_line(field.value), "`")) << key;
    }
  }
}

// Compares with docs/parallelism.md, section "How a configuration is written".
TEST(Documentation, ListsThePartsOfAConfigurationWithTheirKeys) {
  std::ifstream file(COPUS_SOURCE "/docs/parallelism.md");
  std::vector<std::string> documented;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> cells = cells_of(line);
    if (line.starts_with("| `") && cells.size() == 4)
      documented.push_back(concat(cells[0], " ", cells[1], " ", cells[2]));
  }
  std::vector<std::string> expected;
  const Configuration configuration;
  const auto add = [&]<class Value>(const ConfigurationField& field, const Value& value) {
    std::string by_default;
    if constexpr (HasNames<Value>) {
      by_default = to_string(value);
    } else {
      by_default = std::to_string(static_cast<int64_t>(value));
    }
    const bool is_option = field.role == ConfigurationField::Role::option;
    expected.push_back(concat("`", field.symbol, "` `", field.section, ".", field.name, "` ",
                              is_option ? concat("`", by_default, "`") : "always written"));
  };
  visit_configuration(add, configuration);
  EXPECT_EQ(documented, expected);
}

}  // namespace
}  // namespace copus
