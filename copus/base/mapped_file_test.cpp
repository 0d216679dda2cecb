#include "copus/base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using ::testing::HasSubstr;

class MappedFileTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view content) const {
    const std::string path = directory_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  TemporaryFolder folder_;
  const std::filesystem::path& directory_ = folder_.path();
};

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST_F(MappedFileTest, ShowsTheContentsOfAFile) {
  const MappedFile file(write("a", std::string_view("a\0b\xFF", 4)));
  EXPECT_EQ(text_of(file), std::string_view("a\0b\xFF", 4));
}

TEST_F(MappedFileTest, AnEmptyFileHasNoBytes) { EXPECT_TRUE(MappedFile(write("a", "")).bytes().empty()); }

TEST_F(MappedFileTest, MovingKeepsTheMapping) {
  MappedFile first(write("a", "first"));
  MappedFile second(std::move(first));
  EXPECT_EQ(text_of(second), "first");
  second = MappedFile(write("b", "second"));
  EXPECT_EQ(text_of(second), "second");
}

TEST_F(MappedFileTest, RefusesWhatIsNotARegularFile) {
  const std::string pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(user_error([&] { MappedFile(directory_ / "none"); }), HasSubstr("none: cannot be opened: No such file"));
  EXPECT_THAT(user_error([&] { MappedFile{directory_.string()}; }), HasSubstr("is a directory"));
  EXPECT_THAT(user_error([&] { MappedFile{pipe}; }), HasSubstr("is not a regular file"));
}

}  // namespace
}  // namespace copus
