#include "copus/workshop/doctor/link_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "copus/base/testing/test_support.h"
#include "copus/workshop/doctor/report.h"

namespace copus {
namespace {

using testing::HasSubstr;

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

TEST(Doctor, APortOfAnotherMachineCannotBeHad) {
  EXPECT_EQ(check_port("127.0.0.1").verdict, Verdict::ok);
  EXPECT_EQ(check_port("192.0.2.1").verdict, Verdict::bad);  // reserved for documentation: no machine has it
}

TEST(Doctor, AHostNameWithoutAnAddressIsAWarning) {
  EXPECT_EQ(check_host_name("localhost").verdict, Verdict::ok);
  EXPECT_EQ(check_host_name("no-such-host.invalid").verdict, Verdict::warning);
}

TEST(Doctor, LinksAreThoseThatAreUp) {
  const TemporaryFolder folder;
  EXPECT_EQ(check_links(folder.path()).verdict, Verdict::warning);
  write(folder.path() / "net/lo/operstate", "unknown\n");
  write(folder.path() / "net/eth1/operstate", "down\n");
  EXPECT_EQ(check_links(folder.path()).verdict, Verdict::warning);
  write(folder.path() / "net/eth0/operstate", "up\n");
  write(folder.path() / "net/eth0/speed", "25000\n");
  EXPECT_EQ(check_links(folder.path()).text, "eth0 25000 Mbit/s");
  write(folder.path() / "infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  write(folder.path() / "infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  EXPECT_EQ(check_links(folder.path()).text, "eth0 25000 Mbit/s, mlx5_0 port 1 400 Gb/sec (4X NDR)");
  write(folder.path() / "infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
  EXPECT_EQ(check_links(folder.path()).verdict, Verdict::warning);
  EXPECT_THAT(check_links(folder.path()).text, HasSubstr("mlx5_1 port 1"));
}

TEST(Doctor, FindsWhatTheKernelShowsOfGpus) {
  const TemporaryFolder folder;
  EXPECT_EQ(kernel_devices(folder.path()).nvidia, 0);
  for (const char* name : {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"}) write(folder.path() / "dev" / name, "");
  write(folder.path() / "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:06:31 UTC 2025\n");
  const KernelDevices devices = kernel_devices(folder.path());
  EXPECT_EQ(devices.nvidia, 2);
  EXPECT_EQ(devices.driver, "580.65.06");
  EXPECT_FALSE(devices.has_amd);
}

TEST(Doctor, GpusThatTheProgramCannotUseAreReported) {
  const KernelDevices none, two{.nvidia = 2, .driver = "580.65.06"}, amd{.has_amd = true};
  EXPECT_EQ(check_gpus("", 0, none).verdict, Verdict::ok);
  EXPECT_EQ(check_gpus("", 0, two).verdict, Verdict::warning);
  EXPECT_EQ(check_gpus("", 0, amd).verdict, Verdict::warning);
  EXPECT_EQ(check_gpus("cuda", 0, none).verdict, Verdict::warning);
  EXPECT_EQ(check_gpus("cuda", 0, two).verdict, Verdict::bad);
  EXPECT_EQ(check_gpus("hip", 0, amd).verdict, Verdict::bad);
  EXPECT_EQ(check_gpus("cuda", 2, two).text, "2 visible to cuda, driver 580.65.06");
}

TEST(Doctor, NcclIsNeededBySeveralGpus) {
  EXPECT_EQ(check_nccl(22703, "", 8).text, "2.27.3");
  EXPECT_EQ(check_nccl(22703, "", 8).verdict, Verdict::ok);
  EXPECT_EQ(check_nccl(21700, "", 8).verdict, Verdict::bad);
  EXPECT_EQ(check_nccl(std::nullopt, "there is none", 8).verdict, Verdict::bad);
  EXPECT_EQ(check_nccl(std::nullopt, "there is none", 1).verdict, Verdict::warning);
}

TEST(Doctor, ReportsWhatIsBadWithWhatToDo) {
  const std::vector<Finding> findings{{Verdict::ok, "cores", "2"}, {Verdict::bad, "open files", "16", "raise it"}};
  EXPECT_EQ(doctor_text(findings),
            "ok       cores          2\n"
            "bad      open files     16\n"
            "         -> raise it\n"
            "1 bad, 0 warnings.\n");
  EXPECT_TRUE(has_bad(findings));
}

TEST(Doctor, ReadsBackItsOwnLinesAlone) {
  const auto found = finding_of(R"({"verdict": "bad", "subject": "GPU 0", "text": "no", "remedy": "look"})");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->subject, "GPU 0");
  EXPECT_FALSE(finding_of("copus-torch: error while loading shared libraries"));
  EXPECT_FALSE(finding_of("{}"));
  EXPECT_FALSE(finding_of(R"({"verdict": 1})"));
}

}  // namespace
}  // namespace copus
