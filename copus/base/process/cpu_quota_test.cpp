#include "copus/base/process/cpu_quota.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "copus/base/process/cores.h"
#include "copus/base/testing/system_files.h"

namespace copus {
namespace {

// The files of a machine whose kernel limits a process's CPU time.
class CpuQuota : public testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) { files_.write(file, text); }
  std::optional<double> quota() const { return cpu_quota(files_.root()); }

  SystemFiles files_;
};

TEST_F(CpuQuota, NoFilesAreNoQuota) { EXPECT_EQ(quota(), std::nullopt); }

TEST_F(CpuQuota, AContainerSeesItsGroupAsTheRoot) {
  write("proc/self/cgroup", "0::/");
  write("sys/fs/cgroup/cpu.max", "150000 100000");
  EXPECT_EQ(quota(), 1.5);
  write("sys/fs/cgroup/cpu.max", "max 100000");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(CpuQuota, TheSmallestQuotaOfTheGroupsAroundAProcessCounts) {
  write("proc/self/cgroup", "0::/kubepods/pod1/main");
  write("sys/fs/cgroup/kubepods/cpu.max", "800000 100000");
  write("sys/fs/cgroup/kubepods/pod1/cpu.max", "300000 100000");
  write("sys/fs/cgroup/kubepods/pod1/main/cpu.max", "max 100000");
  EXPECT_EQ(quota(), 3);
  write("sys/fs/cgroup/kubepods/pod1/main/cpu.max", "50000 100000");
  EXPECT_EQ(quota(), 0.5);
  write("sys/fs/cgroup/kubepods/pod2/cpu.max", "10000 100000");
  EXPECT_EQ(quota(), 0.5) << "another pod's";
}

TEST_F(CpuQuota, VersionOneOfControlGroups) {
  write("proc/self/cgroup", "9:cpuset:/elsewhere\n4:cpu,cpuacct:/docker/a1\n0::/");
  write("sys/fs/cgroup/cpu/docker/a1/cpu.cfs_quota_us", "200000");
  write("sys/fs/cgroup/cpu/docker/a1/cpu.cfs_period_us", "50000");
  EXPECT_EQ(quota(), 4);
  write("sys/fs/cgroup/cpu/docker/a1/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(CpuQuota, AContainerOfVersionOneSeesItsGroupAsTheMountAndTheHostsPath) {
  write("proc/self/cgroup", "1:cpu:/docker/a1");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota(), 2);
}

TEST_F(CpuQuota, BoundsTheUsableCoresAndIsRoundedUp) {
  const int64_t bound = cores_of_affinity();
  EXPECT_EQ(usable_cores(files_.root()), bound);
  write("proc/self/cgroup", "0::/");
  write("sys/fs/cgroup/cpu.max", "10000 100000");
  EXPECT_EQ(usable_cores(files_.root()), 1) << "a tenth of a core";
  write("sys/fs/cgroup/cpu.max", std::to_string(bound * 100'000 - 50'000) + " 100000");
  EXPECT_EQ(usable_cores(files_.root()), bound) << "half a core less";
  write("sys/fs/cgroup/cpu.max", std::to_string((bound + 3) * 100'000) + " 100000");
  EXPECT_EQ(usable_cores(files_.root()), bound) << "more than the process may run on";
}

}  // namespace
}  // namespace copus
