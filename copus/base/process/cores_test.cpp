#include "copus/base/process/cores.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

TEST(Cores, ThreadsThatThereAreAreNoMistake) {
  EXPECT_GE(usable_cores(), 1);
  require_threads(1);
  require_threads(8);
}

TEST(Cores, ThreadsOfAProcessFollowTheVariableAndElseItsPartOfTheCores) {
  const int64_t half = std::max<int64_t>(1, usable_cores() / 2);
  for (const auto& [text, expected] : std::vector<std::pair<const char*, int64_t>>{{"3", 3},
                                                                                   {"5,2", 5},
                                                                                   {"", half},
                                                                                   {"0", half},
                                                                                   {"-1", half},
                                                                                   {"many", half},
                                                                                   {"2x", half},
                                                                                   {"99999", half}}) {
    setenv("OMP_NUM_THREADS", text, 1);
    EXPECT_EQ(default_threads(2), expected) << text;
  }
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(default_threads(2), half);
  EXPECT_EQ(default_threads(1'000'000), 1);
}

TEST(Cores, TheLimitThatWouldDoIsNamed) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become a user who has no other process";
  const auto limited = [] {
    const rlimit limit{3, 3};
    setrlimit(RLIMIT_NPROC, &limit);
    constexpr uid_t nobody_else = 54'321;
    if (::setuid(nobody_else) != 0) std::exit(1);
    std::fputs(user_error([] { require_threads(8); }).c_str(), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(limited(), testing::ExitedWithCode(0),
              "8 threads are needed, and there can be 3 under ulimit -u 3, where 8 would do");
}

TEST(Cores, ThreadsThatTheSystemRefusesAreTheUsersMistake) {
  if (under_address_sanitizer) GTEST_SKIP() << "AddressSanitizer takes more address space than the limit";
  // Runs in a child process, whose address space holds the stacks of a few more threads but not of a thousand.
  const auto limited = [] {
    rlimit stack{int64_t{64} << 20, int64_t{64} << 20};
    setrlimit(RLIMIT_STACK, &stack);
    const rlimit limit{int64_t{4} << 30, int64_t{4} << 30};
    setrlimit(RLIMIT_AS, &limit);
    const std::string message = user_error([] { require_threads(1000); });
    std::fputs(message.c_str(), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(limited(), testing::ExitedWithCode(0), "1000 threads are needed, and there can be .*ulimit -u");
}

}  // namespace
}  // namespace copus
