#include "copus/base/process/available_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "copus/base/testing/system_files.h"
#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

TEST(AvailableMemory, IsSomeOfTheMachines) {
  const int64_t whole = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_LE(available_memory_bytes(), whole);
}

// The files of a machine with 8 GiB of free memory, whose kernel limits a process's memory.
class MemoryOfGroups : public testing::Test {
 protected:
  MemoryOfGroups() { write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB"); }
  void write(const std::string& file, const std::string& text) { files_.write(file, text); }
  int64_t available() const { return available_memory_bytes(files_.root()); }
  int64_t usable() const { return usable_memory_bytes(files_.root()); }

  const int64_t whole_ = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  SystemFiles files_;
};

TEST_F(MemoryOfGroups, WithoutALimitTheSystemsCounts) {
  EXPECT_EQ(available(), int64_t{8} << 30);
  write("proc/self/cgroup", "0::/");
  write("sys/fs/cgroup/memory.max", "max");
  EXPECT_EQ(available(), int64_t{8} << 30);
  EXPECT_EQ(usable(), whole_);
}

TEST_F(MemoryOfGroups, TheSmallestOfTheGroupsAroundAProcessCounts) {
  write("proc/self/cgroup", "0::/slurm/job_1/step_0");
  write("sys/fs/cgroup/slurm/job_1/memory.max", "5000000");
  write("sys/fs/cgroup/slurm/job_1/memory.current", "3000000");
  write("sys/fs/cgroup/slurm/job_1/memory.stat", "anon 1900000\ninactive_file 400000\nslab_reclaimable 100000");
  write("sys/fs/cgroup/slurm/job_1/step_0/memory.max", "max");
  EXPECT_EQ(available(), 2500000);
  EXPECT_EQ(usable(), 5000000);
  write("sys/fs/cgroup/slurm/job_2/memory.max", "1000");
  EXPECT_EQ(usable(), 5000000) << "another job's";
}

TEST_F(MemoryOfGroups, VersionOneOfControlGroups) {
  write("proc/self/cgroup", "9:cpuset:/elsewhere\n4:memory:/docker/a1\n0::/");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "7000000");
  write("sys/fs/cgroup/memory/docker/a1/memory.limit_in_bytes", "5000000");
  write("sys/fs/cgroup/memory/docker/a1/memory.usage_in_bytes", "3000000");
  write("sys/fs/cgroup/memory/docker/a1/memory.stat", "inactive_file 1\ntotal_inactive_file 400000");
  EXPECT_EQ(available(), 2400000);
  EXPECT_EQ(usable(), 5000000);
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
