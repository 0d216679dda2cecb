#include "copus/base/available_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace copus {
namespace {

TEST(AvailableMemory, IsSomeOfTheMachines) {
  const int64_t whole = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_LE(available_memory_bytes(), whole);
}

}  // namespace
}  // namespace copus
