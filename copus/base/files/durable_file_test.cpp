#include "copus/base/files/durable_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>  // renameat2
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"

namespace {

bool lacks_exchange = false;  // whether the file system cannot exchange names, like NFS

}  // namespace

// Replaces the C library's function.
extern "C" int renameat2(int oldfd, const char* old, int newfd, const char* new_name, unsigned int flags) noexcept {
  if (lacks_exchange && flags != 0) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, oldfd, old, newfd, new_name, flags));
}

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
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

// A limit on file size stands in for a full disk: in both cases write() fails in the middle of a file. The limit
// applies to a whole process, so it is set in a child process.
TEST_F(DurableFileTest, FullDiskSaysWhatWasNeededAndLeavesNothing) {
  const auto attempt = [&] {
    const FileSizeLimit limit(1000);
    std::cerr << user_error([&] { write_file_durably(folder_ / "a.txt", std::string(5000, 'x')); });
    std::_Exit(0);
  };
  EXPECT_EXIT(attempt(), ::testing::ExitedWithCode(0),
              "a.txt: File too large; the file needs 5000 bytes, and files of this process may have 1000");
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

TEST_F(DurableFileTest, WithoutExchangeAFolderIsReplacedOrStays) {
  lacks_exchange = true;
  std::filesystem::create_directory(folder_ / "old");
  std::filesystem::create_directory(folder_ / "new");
  write_file_durably(folder_ / "old" / "a.txt", "old");
  write_file_durably(folder_ / "new" / "b.txt", "new");
  EXPECT_THAT(user_error([&] { replace_durably(folder_ / "missing", folder_ / "old"); }),
              HasSubstr("No such file or directory"));
  EXPECT_THAT(list_directory(folder_), ElementsAre("new", "old"));
  EXPECT_THAT(list_directory(folder_ / "old"), ElementsAre("a.txt"));
  replace_durably(folder_ / "new", folder_ / "old");
  EXPECT_THAT(list_directory(folder_), ElementsAre("old"));
  EXPECT_THAT(list_directory(folder_ / "old"), ElementsAre("b.txt"));
  lacks_exchange = false;
}

TEST_F(DurableFileTest, AFolderIsDeletedUnlessItIsProtected) {
  std::filesystem::create_directory(folder_ / "d");
  write_file_durably(folder_ / "d" / "a.txt", "x");
  if (::geteuid() != 0) {  // root may write everywhere
    std::filesystem::permissions(folder_ / "d", std::filesystem::perms(0555));
    EXPECT_THAT(user_error([&] { delete_directory_durably(folder_ / "d"); }), HasSubstr("Permission denied"));
    EXPECT_THAT(list_directory(folder_ / "d"), ElementsAre("a.txt"));
    std::filesystem::permissions(folder_ / "d", std::filesystem::perms(0755));
  }
  delete_directory_durably(folder_ / "d");
  EXPECT_EQ(entries(), 0);
  EXPECT_THAT(user_error([&] { delete_directory_durably(folder_ / "d"); }), HasSubstr("cannot delete"));
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
  EXPECT_EQ(entries(), 1);
}

TEST_F(DurableFileTest, AFolderTakesThePlaceOfAnEmptyOneAndOfNoOther) {
  const auto write = [&] {
    write_directory_durably(folder_ / "d", 3, [](const auto& partial) { write_file_durably(partial / "b.txt", ""); });
  };
  std::filesystem::create_directory(folder_ / "d");
  write();
  EXPECT_THAT(list_directory(folder_ / "d"), ElementsAre("b.txt"));
  write_file_durably(folder_ / "d" / "of-the-user.txt", "x");
  EXPECT_THAT(user_error(write), HasSubstr("Directory not empty"));
  EXPECT_THAT(list_directory(folder_ / "d"), ElementsAre("b.txt", "of-the-user.txt"));
  EXPECT_EQ(entries(), 1);
}

TEST_F(DurableFileTest, WhatHasATemporaryNameAlreadyIsLeftAlone) {
  write_file_durably(folder_ / "a.txt.partial", "of the user");
  std::filesystem::create_directory(folder_ / "d.partial");
  write_file_durably(folder_ / "d.partial" / "b.txt", "of the user");
  std::filesystem::create_directory(folder_ / "d.backup.partial");
  write_file_durably(folder_ / "d.backup.partial" / "c.txt", "of the user");
  write_file_durably(folder_ / "a.txt", "new");
  write_directory_durably(folder_ / "d", 3, [](const auto& partial) { write_file_durably(partial / "a.txt", "new"); });
  EXPECT_EQ(read_text_file(folder_ / "a.txt.partial"), "of the user");
  EXPECT_EQ(read_text_file(folder_ / "d.partial" / "b.txt"), "of the user");
  EXPECT_EQ(read_text_file(folder_ / "d.backup.partial" / "c.txt"), "of the user");
  EXPECT_THAT(list_directory(folder_), ElementsAre("a.txt", "a.txt.partial", "d", "d.backup.partial", "d.partial"));
}

TEST_F(DurableFileTest, LinksAreReplacedAndNotFollowed) {
  write_file_durably(folder_ / "target", "of the user");
  for (const char* name : {"a.txt", "a.txt.partial"}) std::filesystem::create_symlink("target", folder_ / name);
  write_file_durably(folder_ / "a.txt", "new");
  EXPECT_EQ(read_text_file(folder_ / "target"), "of the user");
  EXPECT_FALSE(std::filesystem::is_symlink(folder_ / "a.txt"));
  EXPECT_EQ(read_text_file(folder_ / "a.txt"), "new");
}

TEST_F(DurableFileTest, WhatIsNoFileIsNotReplacedByOne) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", folder_ / "device");
  for (const char* name : {"pipe", "device", "."}) {
    EXPECT_THAT(user_error([&] { write_file_durably(folder_ / name, "x"); }), HasSubstr("expected a file")) << name;
  }
  EXPECT_TRUE(std::filesystem::is_fifo(folder_ / "pipe"));
  EXPECT_EQ(entries(), 2);
}

TEST_F(DurableFileTest, AnInterruptedFolderIsInNobodysWayAndDeletedOnceItsWriterIsDead) {
  const auto write = [&](const auto& meanwhile) {
    write_directory_durably(folder_ / "d", 3, [&](const std::filesystem::path& partial) {
      write_file_durably(partial / "a.txt", "x");
      meanwhile();
    });
  };
  const pid_t writer = ::fork();
  if (writer == 0) write([] { ::_exit(0); });
  ::waitpid(writer, nullptr, 0);
  ASSERT_EQ(entries(), 1) << "what the dead writer has left";

  // Two living writers write the same folder. The second one deletes what a dead writer left, but not the first one's
  // folder.
  EXPECT_THAT(user_error([&] {
                write([&] {
                  EXPECT_EQ(entries(), 1);
                  write([] {});
                  EXPECT_EQ(entries(), 2);
                });
              }),
              HasSubstr("Directory not empty"));
  EXPECT_THAT(list_directory(folder_), ElementsAre("d"));
}

TEST_F(DurableFileTest, ReadingNamesTheMissingFile) {
  EXPECT_THAT(user_error([&] { read_text_file(folder_ / "none.txt"); }), HasSubstr("none.txt: no such file"));
  EXPECT_THAT(user_error([&] { read_text_file(folder_); }), HasSubstr("it is a folder"));
  EXPECT_THAT(user_error([&] { read_text_file(folder_ / std::string(5000, 'x')); }), HasSubstr("File name too long"));
}

TEST_F(DurableFileTest, ReadingRefusesWhatIsTooLargeForAText) {
  write_file_durably(folder_ / "a.txt", "hello");
  EXPECT_EQ(read_text_file(folder_ / "a.txt", 5), "hello");
  EXPECT_THAT(user_error([&] { read_text_file(folder_ / "a.txt", 4); }), HasSubstr("a.txt: it has more than 4 bytes"));
  std::filesystem::resize_file(folder_ / "a.txt", uint64_t{100} << 30);  // takes no room on the disk
  EXPECT_THAT(user_error([&] { read_text_file(folder_ / "a.txt"); }), HasSubstr("it has more than 268435456 bytes"));
  EXPECT_THAT(user_error([] { read_text_file("/proc/cpuinfo", 10); }), HasSubstr("it has more than 10 bytes"))
      << "whose size is not known before";
}

}  // namespace
}  // namespace copus
