#include "copus/workshop/doctor/host_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using testing::HasSubstr;

constexpr int64_t gib = int64_t{1} << 30;
constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

// Makes the kernel refuse a system call to this process, as a container's seccomp profile does.
void refuse_system_call(long number) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(rules), .filter = rules};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::exit(77);
  }
}

// Worsens the environment of this process, then prints the finding of a check.
[[noreturn]] void print_in(const std::function<void()>& worsen, const std::function<Finding()>& check) {
  worsen();
  const Finding finding = check();
  std::fputs(concat(to_string(finding.verdict), ": ", finding.text, "; ", finding.remedy).c_str(), stderr);
  std::exit(0);
}

TEST(Doctor, NamesTheCoresOfTheAffinityAndTheQuota) {
  EXPECT_THAT(check_cores(8, 8, std::nullopt, 8).text, HasSubstr("8 usable: the process may run on 8, and no control"));
  EXPECT_THAT(check_cores(8, 2, 1.5, 2).text,
              HasSubstr("2 usable: the process may run on 8, and its control group grants"));
  EXPECT_THAT(check_cores(8, 2, 1.5, 2).text, HasSubstr("the time of 1.5"));
  EXPECT_EQ(check_cores(8, 2, 1.5, 2).verdict, Verdict::ok);
  EXPECT_EQ(check_cores(8, 2, 1.5, 8).verdict, Verdict::warning);
  EXPECT_THAT(check_cores(8, 2, 1.5, 8).remedy, HasSubstr("OMP_NUM_THREADS asks for 8 threads"));
}

TEST(Doctor, LittleMemoryIsAWarningAndNoneIsBad) {
  EXPECT_EQ(check_memory(8 * gib, unlimited).verdict, Verdict::ok);
  EXPECT_EQ(check_memory(gib, unlimited).verdict, Verdict::warning);
  EXPECT_EQ(check_memory(gib / 4, unlimited).verdict, Verdict::bad);
  EXPECT_EQ(check_memory(8 * gib, gib / 4).verdict, Verdict::bad);
}

TEST(Doctor, TooFewOpenFilesForTheRanksAreBad) {
  EXPECT_EQ(check_open_files(20'000, 8).verdict, Verdict::ok);
  EXPECT_EQ(check_open_files(512, 8).verdict, Verdict::warning);
  EXPECT_EQ(check_open_files(95, 8).verdict, Verdict::bad);
  EXPECT_THAT(check_open_files(95, 8).remedy, HasSubstr("8 ranks on this machine need 96"));
}

TEST(Doctor, ThreadsThatTheSystemRefusesAreBad) {
  EXPECT_EQ(check_threads(1).verdict, Verdict::ok);
  if (::getuid() != 0) GTEST_SKIP() << "only root can become a user who has no other process";
  const auto few = [] {
    const rlimit limit{3, 3};
    setrlimit(RLIMIT_NPROC, &limit);
    constexpr uid_t nobody_else = 54'322;
    if (::setuid(nobody_else) != 0) std::exit(1);
  };
  EXPECT_EXIT(print_in(few, [] { return check_threads(8); }), testing::ExitedWithCode(0),
              "bad: fewer than 40 can be started under ulimit -u 3");
}

TEST(Doctor, ARunDirectoryIsWrittenAndLockedAndLeftAsItWas) {
  const TemporaryFolder folder;
  EXPECT_EQ(check_run_directory(folder.path() / "runs/a").verdict, Verdict::ok);
  EXPECT_THAT(check_run_directory(folder.path()).text, HasSubstr("written and locked"));
  EXPECT_TRUE(list_directory(folder.path()).empty());
}

TEST(Doctor, AFolderThatCannotBeWrittenIsBad) {
  EXPECT_EQ(check_run_directory("/proc/runs").verdict, Verdict::bad);
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "";
  EXPECT_EQ(check_run_directory(folder.path() / "file/runs").verdict, Verdict::bad);
  const auto full = [] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{2048, 2048};  // enough for the message
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  const auto check = [&] { return check_run_directory(folder.path()); };
  EXPECT_EXIT(print_in(full, check), testing::ExitedWithCode(0), "bad: .*File too large");
  EXPECT_THAT(list_directory(folder.path()), testing::ElementsAre("file"));
}

TEST(Doctor, AFileSystemWithoutLocksIsAWarning) {
  const TemporaryFolder folder;
  const auto worsen = [] { refuse_system_call(SYS_flock); };
  const auto check = [&] { return check_run_directory(folder.path()); };
  EXPECT_EXIT(print_in(worsen, check), testing::ExitedWithCode(0), "warning: .*there are no file locks here");
}

TEST(Doctor, SharedMemoryThatIsMissingIsAWarning) {
  const TemporaryFolder folder;
  EXPECT_EQ(check_shared_memory(folder.path() / "shm").verdict, Verdict::warning);
  EXPECT_EQ(check_shared_memory("/proc").verdict, Verdict::warning);  // has no space
  EXPECT_THAT(check_shared_memory("/proc").remedy, HasSubstr("--shm-size"));
}

TEST(Doctor, MemoryOfAnotherRankThatCannotBeReadIsAWarning) {
  EXPECT_EQ(check_peer_memory().verdict, Verdict::ok) << check_peer_memory().text;
  EXPECT_EXIT(print_in([] { refuse_system_call(SYS_process_vm_readv); }, check_peer_memory), testing::ExitedWithCode(0),
              "warning: a rank cannot copy another one's memory; .*SYS_PTRACE");
}

TEST(Doctor, WithoutAnonymousMemoryRanksCannotStart) {
  EXPECT_EXIT(print_in([] { refuse_system_call(SYS_memfd_create); }, check_peer_memory), testing::ExitedWithCode(0),
              "bad: no anonymous shared memory .*; several ranks on this machine cannot start");
}

TEST(Doctor, AClockThatIsWrongOrOnItsOwnIsAWarning) {
  constexpr std::time_t in_2026 = 1'790'000'000, in_1970 = 86'400;
  EXPECT_EQ(check_clock(in_2026, true).verdict, Verdict::ok);
  EXPECT_EQ(check_clock(in_2026, false).verdict, Verdict::warning);
  EXPECT_THAT(check_clock(in_1970, true).text, HasSubstr("1970-01-02 00:00:00 UTC is in the past"));
}

// Sets a variable for the lifetime of this object.
class SetVariable {
 public:
  SetVariable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  SetVariable(const SetVariable&) = delete;
  SetVariable& operator=(const SetVariable&) = delete;
  ~SetVariable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Doctor, EachHarmfulVariableIsAWarning) {
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(check_variables(4).front().verdict, Verdict::ok) << check_variables(4).front().text;
  for (const auto& [name, value] : {std::pair{"CUDA_DEVICE_MAX_CONNECTIONS", "1"},
                                    {"NCCL_P2P_DISABLE", "1"},
                                    {"NCCL_SHM_DISABLE", "1"},
                                    {"NCCL_IB_DISABLE", "1"},
                                    {"NCCL_NVLS_ENABLE", "1"},
                                    {"NCCL_ALGO", "Ring"},
                                    {"NCCL_PROTO", "LL"},
                                    {"NCCL_DEBUG", "TRACE"},
                                    {"CUDA_LAUNCH_BLOCKING", "1"},
                                    {"OMP_NUM_THREADS", "1"},
                                    {"OMP_NUM_THREADS", "5"}}) {
    const SetVariable variable(name, value);
    const std::vector<Finding> findings = check_variables(4);
    ASSERT_EQ(findings.size(), 1) << name;
    EXPECT_EQ(findings.front().verdict, Verdict::warning) << name;
    EXPECT_THAT(findings.front().text, HasSubstr(name));
  }
  const SetVariable harmless("NCCL_IB_DISABLE", "0"), usual("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  EXPECT_EQ(check_variables(4).front().verdict, Verdict::ok);
}

TEST(Doctor, HalfALaunchersVariablesAreBad) {
  EXPECT_EQ(check_launcher().verdict, Verdict::ok);
  const SetVariable rank("RANK", "0");
  EXPECT_EQ(check_launcher().verdict, Verdict::bad);
  EXPECT_THAT(check_launcher().remedy, HasSubstr("WORLD_SIZE"));
}

}  // namespace
}  // namespace copus
