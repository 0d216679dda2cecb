#include "copus/base/process/available_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

TEST(AvailableMemory, IsSomeOfTheMachines) {
  const int64_t whole = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_LE(available_memory_bytes(), whole);
}

TEST(AvailableMemory, ALimitOnTheProcessCounts) {
  if (under_address_sanitizer) GTEST_SKIP() << "AddressSanitizer takes more address space than the limit";
  // Runs in a child process, because the limit cannot be removed again.
  const auto limited = [] {
    const rlimit limit{int64_t{1} << 40, int64_t{1} << 40};
    const bool is_set = setrlimit(RLIMIT_AS, &limit) == 0;
    const int64_t left = available_address_space_bytes();
    const bool is_told = lack_of_memory_message().find("ulimit -v") != std::string::npos;
    std::exit(is_set && left > 0 && left < (int64_t{1} << 40) && is_told ? 0 : 1);
  };
  EXPECT_EXIT(limited(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace copus
