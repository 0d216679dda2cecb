#include "copus/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace copus {
namespace {

using testing::HasSubstr;
using testing::internal::CaptureStderr;
using testing::internal::GetCapturedStderr;

TEST(Log, WritesLinesToStderr) {
  init_log(LogLevel::info);
  CaptureStderr();
  log_info("first");
  log_warning("second");
  log_error("third");
  const std::string output = GetCapturedStderr();
  EXPECT_THAT(output, HasSubstr("] info: first\n"));
  EXPECT_THAT(output, HasSubstr("] warning: second\n"));
  EXPECT_THAT(output, HasSubstr("] error: third\n"));
  EXPECT_THAT(output, Not(HasSubstr("\x1b"))) << "escape codes belong on a terminal only";
}

TEST(Log, MessagesAreNotFormatStrings) {
  init_log(LogLevel::info);
  CaptureStderr();
  log_info("100 % of {} and {0:q}");
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("info: 100 % of {} and {0:q}\n"));
}

TEST(Log, DropsWhatIsBelowTheLevel) {
  init_log(LogLevel::error);
  CaptureStderr();
  log_info("first");
  log_warning("second");
  log_error("third");
  const std::string output = GetCapturedStderr();
  EXPECT_THAT(output, Not(HasSubstr("first")));
  EXPECT_THAT(output, Not(HasSubstr("second")));
  EXPECT_THAT(output, HasSubstr("third"));
}

TEST(Log, NamesTheRank) {
  init_log(LogLevel::info, 3);
  CaptureStderr();
  log_warning("slow");
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("] [rank 3] warning: slow\n"));
}

}  // namespace
}  // namespace copus
