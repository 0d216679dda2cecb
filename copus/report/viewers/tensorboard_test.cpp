#include "copus/report/viewers/tensorboard.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "copus/base/error.h"
#include "copus/report/testing/test_directory.h"
#include "copus/report/viewers/crc32c.h"

namespace copus {
namespace {

using testing::HasSubstr;
using namespace std::string_literals;

class TensorBoardTest : public TestDirectory {
 protected:
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> result;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) result.push_back(entry.path());
    std::sort(result.begin(), result.end());
    return result;
  }

  // Events of a file, after checking its framing.
  static std::vector<std::string> events(const std::filesystem::path& path) {
    const std::string content = read_text_file(path);
    std::vector<std::string> result;
    for (size_t at = 0; at < content.size();) {
      uint64_t length = 0;
      uint32_t checksum = 0;
      if (content.size() - at < 16) ADD_FAILURE() << "the last record is cut short";
      std::memcpy(&length, content.data() + at, 8);
      std::memcpy(&checksum, content.data() + at + 8, 4);
      EXPECT_EQ(checksum, masked_crc32c(content.substr(at, 8)));
      result.push_back(content.substr(at + 12, length));
      std::memcpy(&checksum, content.data() + at + 12 + length, 4);
      EXPECT_EQ(checksum, masked_crc32c(result.back()));
      at += 16 + length;
    }
    return result;
  }
};

TEST_F(TensorBoardTest, FileStartsWithItsVersion) {
  TensorBoardWriter(directory_).flush();
  const auto written = events(files().at(0));
  ASSERT_EQ(written.size(), 1U);
  EXPECT_THAT(written[0], testing::EndsWith("\x1a\x0d"
                                            "brain.Event:2"));  // field 3, a string of 13 bytes
  EXPECT_THAT(files()[0].filename().string(), testing::StartsWith("events.out.tfevents."));
}

TEST_F(TensorBoardTest, ScalarIsEncodedByteForByte) {
  TensorBoardWriter writer(directory_);
  writer.scalar("train/loss", 300, 1.5, 2.0);
  writer.flush();
  EXPECT_EQ(events(files().at(0)).at(1),
            "\x09\x00\x00\x00\x00\x00\x00\x00\x40"  // wall_time = 2.0
            "\x10\xac\x02"                          // step = 300
            "\x2a\x13"                              // summary, 19 bytes
            "\x0a\x11"                              // value, 17 bytes
            "\x0a\x0atrain/loss"                    // tag
            "\x15\x00\x00\xc0\x3f"s);               // simple_value = 1.5f
}

TEST_F(TensorBoardTest, ResumingSaysFromWhichStep) {
  TensorBoardWriter(directory_, 299).flush();
  EXPECT_THAT(events(files().at(0)).at(1), testing::EndsWith("\x10\xac\x02"         // step = 300
                                                             "\x3a\x02\x08\x01"));  // session_log { status = START }
}

TEST_F(TensorBoardTest, EveryFileSortsBehindTheEarlierOnes) {
  write_file_durably(directory_ / "events.out.tfevents.9999999998.host.1", "");
  for (const char* next : {"events.out.tfevents.9999999999.", "events.out.tfevents.10000000000."}) {
    TensorBoardWriter(directory_).flush();
    std::vector<std::string> names;
    for (const auto& path : files()) names.push_back(path.filename().string());
    EXPECT_THAT(names, testing::Contains(testing::StartsWith(next)));
  }
}

TEST_F(TensorBoardTest, FullBufferIsWrittenWithoutFlush) {
  TensorBoardWriter writer(directory_);
  for (int64_t step = 0; step < 2000; ++step) writer.scalar("train/loss", step, 1, 2);
  EXPECT_GT(read_text_file(files().at(0)).size(), 64U * 1024);
}

TEST_F(TensorBoardTest, DestructorFlushes) {
  {
    TensorBoardWriter(directory_).scalar("train/loss", 1, 1, 2);
  }
  EXPECT_EQ(events(files().at(0)).size(), 2U);
}

TEST_F(TensorBoardTest, DirectoryThatCannotBeCreatedIsNamed) {
  write_file_durably(directory_ / "file", "");
  try {
    TensorBoardWriter writer(directory_ / "file" / "tensorboard");
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("file/tensorboard: cannot be created"));
  }
}

TEST_F(TensorBoardTest, FullDiskNamesTheFile) {
  const auto fill_disk = [&] {
    std::string message;
    {
      const FileSizeLimit limit(100);
      TensorBoardWriter writer(directory_);
      for (int64_t step = 0; step < 5; ++step) writer.scalar("train/loss", step, 1, 2);
      try {
        writer.flush();
      } catch (const UserError& error) {
        message = error.what();
      }
    }
    std::fputs(message.c_str(), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(fill_disk(), testing::ExitedWithCode(0), "tfevents.*cannot be written: .*raise that limit");
}

}  // namespace
}  // namespace copus
