// docs/configuration.md lists every key, with the default that the code has.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "copus/base/error.h"
#include "copus/config/run_config_fields.h"

namespace copus {
namespace {

// "section.key" -> the cell of its default. Rows look like: | `key` | type | default | meaning |
std::map<std::string, std::string> documented_defaults() {
  std::ifstream file(COPUS_SOURCE "/docs/configuration.md");
  EXPECT_TRUE(file);
  std::map<std::string, std::string> defaults;
  std::string section;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## [")) section = line.substr(4, line.find(']') - 4);
    if (!line.starts_with("| `")) continue;
    std::vector<std::string> cells;
    for (size_t begin = 2; begin < line.size();) {
      const size_t end = line.find(" | ", begin);
      cells.push_back(line.substr(begin, end - begin));
      begin = end == std::string::npos ? line.size() : end + 3;
    }
    if (cells.size() != 4) {
      ADD_FAILURE() << "not four cells: " << line;
      continue;
    }
    defaults[concat(section, ".", cells[0].substr(1, cells[0].size() - 2))] = cells[2];
  }
  return defaults;
}

TEST(Documentation, ListsExactlyTheKeysThatExist) {
  std::set<std::string> documented;
  for (const auto& [key, unused] : documented_defaults()) documented.insert(key);
  const std::vector<std::string> keys = run_config_keys();
  EXPECT_EQ(documented, std::set<std::string>(keys.begin(), keys.end()));
}

TEST(Documentation, StatesTheDefaultsThatTheCodeHas) {
  const std::map<std::string, std::string> documented = documented_defaults();
  for (const WrittenField& field : write_fields(RunConfig{})) {
    const std::string key = concat(field.section, ".", field.key);
    if (field.section == "model" || key == "data.train") continue;  // these follow from others, or have none
    ASSERT_TRUE(documented.contains(key)) << key;
    EXPECT_EQ(documented.at(key), concat("`", field.value, "`")) << key;
  }
}

}  // namespace
}  // namespace copus
