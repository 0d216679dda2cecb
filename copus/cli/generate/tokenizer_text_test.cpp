// Tests a tokenizer process that hangs. generate_test.py tests how text is encoded and decoded.
#include "copus/cli/generate/tokenizer_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

class TokenizerTextTest : public testing::Test {
 protected:
  TokenizerTextTest() : path_before_(std::getenv("PATH")) {
    ::setenv("PATH", (folder_.path().string() + ":" + path_before_).c_str(), 1);
    write_file_durably(folder_.path() / "tokenizer.json", "{}");
  }
  ~TokenizerTextTest() override { ::setenv("PATH", path_before_.c_str(), 1); }

  // Puts a python3 first in PATH that prints `greeting`, and afterwards neither reads nor prints anything.
  void hang_behind(const std::string& greeting) const {
    const std::filesystem::path python = folder_.path() / "python3";
    write_file_durably(python, concat("#!/bin/sh\necho $$ >'", (folder_.path() / "process").string(), "'\n", greeting,
                                      "\nexec sleep 1000000\n"));
    std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  }
  bool is_gone() const {
    pid_t process = 0;
    std::ifstream(folder_.path() / "process") >> process;
    return process > 0 && ::kill(process, 0) != 0 && errno == ESRCH;
  }

  TemporaryFolder folder_;
  std::string path_before_;
};

TEST_F(TokenizerTextTest, AProcessThatNeverBeginsIsGivenUp) {
  hang_behind("");
  EXPECT_THAT(user_error([&] { TokenizerText(folder_.path(), milliseconds(300)); }),
              AllOf(HasSubstr("python3: it ended at once, or gave no answer within 0.3 s"), HasSubstr("--ids")));
}

TEST_F(TokenizerTextTest, AProcessThatHangsIsGivenUp) {
  hang_behind("echo '{\"end_of_document\": 7}'");
  {
    TokenizerText text(folder_.path(), milliseconds(2500));  // enough for a shell to start, even on a busy machine
    EXPECT_EQ(text.end_of_document(), 7);
    for (const size_t length : {size_t{5}, size_t{10} << 20}) {  // the longer one fills the socket
      EXPECT_THAT(user_error([&] { text.encode(std::string(length, 'x')); }),
                  HasSubstr("tokenizer.json has ended early, or gave no answer within 2.5 s"));
    }
    EXPECT_FALSE(is_gone());
  }
  EXPECT_TRUE(is_gone());
}

}  // namespace
}  // namespace copus
