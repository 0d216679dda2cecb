#include "copus/data/file_pool.h"

#include <gtest/gtest.h>

#include <fstream>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

TEST(FilePool, KeepsTheLatestFilesOpen) {
  const TemporaryFolder folder;
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  for (const char* name : {"a", "b", "c"}) std::ofstream(path(name)) << name;
  FilePool pool(2);
  const auto a = pool.open(path("a"));
  pool.open(path("b"));
  EXPECT_EQ(pool.open(path("a")), a) << "the same mapping";
  pool.open(path("c"));
  EXPECT_TRUE(pool.is_open(path("a")));
  EXPECT_FALSE(pool.is_open(path("b")));
  pool.open(path("b"));
  EXPECT_FALSE(pool.is_open(path("a")));
  EXPECT_EQ(static_cast<char>(a->bytes()[0]), 'a') << "a reader keeps its file";
}

}  // namespace
}  // namespace copus
