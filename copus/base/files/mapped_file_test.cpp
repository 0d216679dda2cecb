#include "copus/base/files/mapped_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

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

TEST_F(MappedFileTest, OfManySmallFilesTheLaterOnesAreCopied) {
  const std::string path = write("a", "small");
  std::vector<MappedFile> files;
  constexpr int more_than_are_mapped = 20'000;
  for (int i = 0; i < more_than_are_mapped; ++i) files.emplace_back(path);
  std::filesystem::resize_file(path, 2);
  EXPECT_EQ(text_of(files.front()), std::string_view("sm\0\0\0", 5));
  EXPECT_EQ(text_of(files.back()), "small");
  MappedFile moved = std::move(files.back());
  EXPECT_EQ(text_of(moved), "small");
  files.clear();
  EXPECT_EQ(text_of(moved), "small");
}

TEST_F(MappedFileTest, RefusesWhatIsNotARegularFile) {
  const std::string pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(user_error([&] { MappedFile(directory_ / "none"); }), HasSubstr("none: cannot be opened: No such file"));
  EXPECT_THAT(user_error([&] { MappedFile{directory_.string()}; }), HasSubstr("it is a folder"));
  EXPECT_THAT(user_error([&] { MappedFile{pipe}; }), HasSubstr("it is a pipe"));
}

// A child process stands in for a training process, because it ends.
TEST_F(MappedFileTest, AFileThatIsCutShortEndsTheProcessWithAMessage) {
  const std::string path = write("corpus\x1b.bin", std::string(100'000, 'x'));
  const auto read_what_is_gone = [&] {
    tell_of_files_cut_short();
    const MappedFile another(write("another", std::string(100'000, 'x')));
    const MappedFile file(path);
    std::filesystem::resize_file(path, 10);
    std::_Exit(static_cast<int>(file.bytes()[90'000]));
  };
  EXPECT_EXIT(read_what_is_gone(), ::testing::ExitedWithCode(2),
              "^copus: error: [^:]*/corpus.x1b.bin: was cut short while it was being read");
}

TEST_F(MappedFileTest, OfThousandsOfFilesTheOneThatIsCutShortIsNamed) {
  const std::string others = write("others", "x"), path = write("last", std::string(100'000, 'x'));
  const auto read_what_is_gone = [&] {
    tell_of_files_cut_short();
    std::vector<MappedFile> files;
    for (int i = 0; i < 5000; ++i) files.emplace_back(others);
    files.erase(files.begin(), files.begin() + 2000);  // the remaining files are moved
    for (int i = 0; i < 3000; ++i) files.emplace_back(others);
    const MappedFile file(path);
    std::filesystem::resize_file(path, 10);
    std::_Exit(static_cast<int>(file.bytes()[90'000]));
  };
  EXPECT_EXIT(read_what_is_gone(), ::testing::ExitedWithCode(2), "/last: was cut short while it was being read");
}

TEST_F(MappedFileTest, AnyOtherBusErrorIsWhatItWas) {
  const auto read_beyond_a_mapping_of_another = [&] {
    tell_of_files_cut_short();
    const std::string path = write("a", std::string(100'000, 'x'));
    {
      const MappedFile closed(path);
    }
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const void* const mapping = ::mmap(nullptr, 100'000, PROT_READ, MAP_SHARED, descriptor, 0);
    std::filesystem::resize_file(path, 10);
    std::_Exit(static_cast<const volatile char*>(mapping)[90'000]);
  };
  EXPECT_EXIT(read_beyond_a_mapping_of_another(), ::testing::KilledBySignal(SIGBUS), "^$");
  const auto be_sent_one = [] {
    tell_of_files_cut_short();
    ::raise(SIGBUS);
  };
  EXPECT_EXIT(be_sent_one(), ::testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace copus
