#include "copus/base/durable_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DurableFileTest : public ::testing::Test {
 protected:
  size_t entries() const { return list_directory(folder_).size(); }

  TemporaryFolder temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
};

TEST_F(DurableFileTest, AppearsWithItsContentAndDigest) {
  const FileDigest digest = write_file_durably(folder_ / "a.txt", "hello");
  EXPECT_EQ(read_text_file(folder_ / "a.txt"), "hello");
  EXPECT_EQ(digest, (FileDigest{5, hash_hex(std::as_bytes(std::span(std::string_view("hello"))))}));
  EXPECT_EQ(entries(), 1);
}

TEST_F(DurableFileTest, WithoutCommitTheOldFileStaysAndNothingIsLeft) {
  write_file_durably(folder_ / "a.txt", "old");
  {
    DurableFile file(folder_ / "a.txt");
    file.write(std::string_view("new"));
    EXPECT_EQ(read_text_file(folder_ / "a.txt"), "old");
  }
  EXPECT_EQ(read_text_file(folder_ / "a.txt"), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(DurableFileTest, MissingFolderIsNamed) {
  const std::string message = user_error([&] { write_file_durably(folder_ / "none" / "a.txt", "x"); });
  EXPECT_THAT(message, HasSubstr((folder_ / "none" / "a.txt").string()));
  EXPECT_THAT(message, HasSubstr("No such file or directory"));
}

// A limit on the size of files stands in for a full disk: either makes write() fail in the middle of a file. The limit
// holds for a whole process, so a child process sets it.
TEST_F(DurableFileTest, FullDiskSaysWhatWasNeededAndLeavesNothing) {
  const auto attempt = [&] {
    const FileSizeLimit limit(1000);
    std::cerr << user_error([&] { write_file_durably(folder_ / "a.txt", std::string(5000, 'x')); });
    std::_Exit(0);
  };
  EXPECT_EXIT(attempt(), ::testing::ExitedWithCode(0), "a.txt: File too large; the file needs 5000 bytes, .* are free");
  EXPECT_EQ(entries(), 0);
}

TEST_F(DurableFileTest, CreatesAllFoldersOfAPath) {
  create_directories_durably(folder_ / "a" / "b" / "");
  EXPECT_TRUE(std::filesystem::is_directory(folder_ / "a" / "b"));
  EXPECT_NO_THROW(create_directories_durably(folder_ / "a" / "b"));
  write_file_durably(folder_ / "file", "x");
  EXPECT_THAT(user_error([&] { create_directories_durably(folder_ / "file" / "c"); }),
              AllOf(HasSubstr("cannot create the folder"), HasSubstr((folder_ / "file" / "c").string())));
}

TEST_F(DurableFileTest, ReplaceExchangesFolders) {
  std::filesystem::create_directory(folder_ / "old");
  std::filesystem::create_directory(folder_ / "new");
  write_file_durably(folder_ / "old" / "a.txt", "old");
  write_file_durably(folder_ / "new" / "b.txt", "new");
  replace_durably(folder_ / "new", folder_ / "old");
  EXPECT_EQ(entries(), 1);
  EXPECT_EQ(read_text_file(folder_ / "old" / "b.txt"), "new");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "old" / "a.txt"));
}

TEST_F(DurableFileTest, FoldersAppearWholeOrNotAtAll) {
  write_directory_durably(folder_ / "d", 3, [](const auto& partial) { write_file_durably(partial / "a.txt", "old"); });
  const std::string message = user_error([&] {
    write_directory_durably(folder_ / "d", 12345, [](const auto& partial) {
      write_file_durably(partial / "a.txt", "new");
      throw UserError("disk is full");
    });
  });
  EXPECT_THAT(message, HasSubstr((folder_ / "d").string() + " (12345 bytes in all): disk is full"));
  EXPECT_EQ(read_text_file(folder_ / "d" / "a.txt"), "old");
  write_directory_durably(folder_ / "d", 3, [](const auto& partial) { write_file_durably(partial / "b.txt", "new"); });
  EXPECT_THAT(list_directory(folder_ / "d"), ::testing::ElementsAre("b.txt"));
  EXPECT_EQ(entries(), 1);
}

TEST_F(DurableFileTest, ReadingNamesTheMissingFile) {
  EXPECT_THAT(user_error([&] { read_text_file(folder_ / "none.txt"); }), HasSubstr("none.txt: no such file"));
  EXPECT_THAT(user_error([&] { read_text_file(folder_); }), HasSubstr("it is a folder"));
  EXPECT_THAT(user_error([&] { read_text_file(folder_ / std::string(5000, 'x')); }), HasSubstr("File name too long"));
}

}  // namespace
}  // namespace copus
