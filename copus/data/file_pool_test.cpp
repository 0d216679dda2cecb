#include "copus/data/file_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

class FilePoolTest : public ::testing::Test {
 protected:
  FilePoolTest() {
    for (const char* name : {"a", "b", "c"}) std::ofstream(path(name)) << name;
  }

  std::string path(const char* name) const { return (folder_.path() / name).string(); }
  std::shared_ptr<const MappedFile> open(FilePool& pool, const char* name) const { return pool.open(path(name), 1); }
  bool is_open(FilePool& pool, const char* name) const { return pool.find(path(name)) != nullptr; }

  TemporaryFolder folder_;
};

TEST_F(FilePoolTest, KeepsTheLatestFilesOpen) {
  FilePool pool(2);
  const auto a = open(pool, "a");
  open(pool, "b");
  EXPECT_EQ(open(pool, "a"), a) << "the same mapping";
  open(pool, "c");
  EXPECT_FALSE(is_open(pool, "b"));
  EXPECT_TRUE(is_open(pool, "a"));
  open(pool, "b");
  EXPECT_FALSE(is_open(pool, "c"));
  EXPECT_EQ(static_cast<char>(a->bytes()[0]), 'a') << "a reader keeps its file";
}

TEST_F(FilePoolTest, KeepsAsManyFilesOpenAsAreReserved) {
  FilePool pool(1);
  pool.reserve(3);
  pool.reserve(2);
  for (const char* name : {"a", "b", "c"}) open(pool, name);
  for (const char* name : {"a", "b", "c"}) {
    std::filesystem::remove(path(name));
    EXPECT_EQ(static_cast<char>(open(pool, name)->bytes()[0]), name[0]);
  }
}

TEST_F(FilePoolTest, RefusesAFileOfAnotherSize) {
  FilePool pool(2);
  EXPECT_THAT(user_error([&] { pool.open(path("a"), 2); }), ::testing::HasSubstr("a has 1 bytes, and 2 were expected"));
  EXPECT_FALSE(is_open(pool, "a"));
}

}  // namespace
}  // namespace copus
