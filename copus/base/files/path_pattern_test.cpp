#include "copus/base/files/path_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PathPattern, MatchesAsAShellDoesAndSortsByBytes) {
  const TemporaryFolder folder;
  for (const char* name : {"b-2", "b-10", "B-1", "c"}) std::ofstream(folder.path() / name) << "x";
  const auto matching = [&](const std::string& pattern) {
    std::vector<std::string> names;
    for (const std::string& path : matching_paths(folder.path() / pattern)) {
      names.push_back(std::filesystem::path(path).filename());
    }
    return names;
  };
  EXPECT_THAT(matching("*"), ElementsAre("B-1", "b-10", "b-2", "c"));
  EXPECT_THAT(matching("b-?"), ElementsAre("b-2"));
  EXPECT_THAT(matching("[bc]*"), ElementsAre("b-10", "b-2", "c"));
  EXPECT_THAT(matching("d*"), IsEmpty());
  EXPECT_THAT(matching("nowhere/*"), IsEmpty());
  EXPECT_THAT(matching("c"), ElementsAre("c"));
  EXPECT_TRUE(is_path_pattern("data/web-*") && is_path_pattern("a?") && is_path_pattern("[ab]"));
  EXPECT_FALSE(is_path_pattern("data/web-1"));
}

}  // namespace
}  // namespace copus
