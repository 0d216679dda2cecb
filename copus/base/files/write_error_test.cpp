#include "copus/base/files/write_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(WriteError, SaysHowLargeTheFileIsAndWhatThereIsRoomFor) {
  EXPECT_THAT(write_error_text(ENOSPC, 4096, "/tmp/a"),
              AllOf(HasSubstr("No space left on device; the file needs 4096 bytes"), HasSubstr("free in /tmp")));
  EXPECT_THAT(write_error_text(EDQUOT, 4096, "/tmp/a"), HasSubstr("quota there is used up"));
  EXPECT_THAT(write_error_text(EFBIG, 4096, "/tmp/a"), HasSubstr("more than the file system allows"));
  EXPECT_THAT(write_error_text(EACCES, 4096, "/tmp/a"), Not(HasSubstr("4096")));
}

TEST(WriteError, NamesALimitOnTheSizeOfFiles) {
  const auto attempt = [] {
    const FileSizeLimit limit(1000);
    std::fprintf(stderr, "%s", write_error_text(EFBIG, 4096, "/tmp/a").c_str());
    std::exit(0);
  };
  EXPECT_EXIT(attempt(), testing::ExitedWithCode(0), "needs 4096 bytes, and files of this process may have 1000 ");
}

}  // namespace
}  // namespace copus
