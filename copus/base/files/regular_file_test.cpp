#include "copus/base/files/regular_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using ::testing::HasSubstr;

class RegularFileTest : public ::testing::Test {
 protected:
  static std::string refusal(const std::filesystem::path& path) {
    return user_error([&] { InputFile{path}; });
  }

  TemporaryFolder folder_;
  const std::filesystem::path& directory_ = folder_.path();
};

TEST_F(RegularFileTest, GivesTheBytesPieceByPiece) {
  write_file_durably(directory_ / "a", "hello");
  InputFile file(directory_ / "a");
  EXPECT_EQ(file.size(), 5);
  std::string text;
  std::array<char, 2> piece;
  while (const size_t count = file.read(piece)) text.append(piece.data(), count);
  EXPECT_EQ(text, "hello");
}

// A read or an open that blocks would make the test fail by its time limit.
TEST_F(RegularFileTest, RefusesAtOnceWhatIsNoFile) {
  ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal(directory_ / "pipe"), HasSubstr("pipe: it is a pipe; expected a file"));
  EXPECT_THAT(refusal("/dev/zero"), HasSubstr("it is a device; expected a file"));
  EXPECT_THAT(refusal(directory_), HasSubstr("it is a folder; expected a file"));
  EXPECT_THAT(refusal(directory_ / "none"), HasSubstr("none: no such file"));

  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::ranges::copy((directory_ / "socket").string(), address.sun_path);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_THAT(refusal(directory_ / "socket"), HasSubstr("a socket or a device; expected a file"));
  ::close(socket);

  // Nothing is written without a reader either.
  EXPECT_THAT(open_regular_file(directory_ / "pipe", O_WRONLY | O_CREAT | O_APPEND).error,
              HasSubstr("expected a file"));
}

TEST_F(RegularFileTest, KnowsWhetherAnOpenFileStillHasItsName) {
  write_file_durably(directory_ / "a", "hello");
  const int descriptor = ::open((directory_ / "a").c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_TRUE(is_file_at(descriptor, directory_ / "a"));
  std::filesystem::rename(directory_ / "a", directory_ / "b");
  EXPECT_FALSE(is_file_at(descriptor, directory_ / "a"));
  EXPECT_TRUE(is_file_at(descriptor, directory_ / "b"));
  write_file_durably(directory_ / "b", "another");
  EXPECT_FALSE(is_file_at(descriptor, directory_ / "b"));
  ::close(descriptor);
}

class FileLockTest : public RegularFileTest {
 protected:
  FileLockTest() { write_file_durably(file_, ""); }
  int open() const { return ::open(file_.c_str(), O_RDWR | O_CLOEXEC); }

  const std::filesystem::path file_ = directory_ / "lock";
};

TEST_F(FileLockTest, AFileHasOneWriter) {
  EXPECT_FALSE(is_file_locked(file_));
  const int writer = open(), other = open();
  EXPECT_TRUE(lock_as_writer(writer));
  EXPECT_TRUE(is_file_locked(file_));
  EXPECT_FALSE(lock_as_writer(other));
  ::close(writer);
  EXPECT_TRUE(lock_as_writer(other));
  ::close(other);
}

TEST_F(FileLockTest, WhoAsksKeepsNoWriterOut) {
  const int asks = open(), writer = open();
  ASSERT_EQ(::flock(asks, LOCK_SH | LOCK_NB), 0);
  std::thread slow_one([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ::close(asks);
  });
  EXPECT_TRUE(lock_as_writer(writer));
  slow_one.join();
  ::close(writer);

  std::atomic<bool> is_done = false;
  std::thread busy_one([&] {
    while (!is_done) is_file_locked(file_);
  });
  for (int i = 0; i < 100; ++i) {
    const int another = open();
    EXPECT_TRUE(lock_as_writer(another));
    ::close(another);
  }
  is_done = true;
  busy_one.join();
}

}  // namespace
}  // namespace copus
