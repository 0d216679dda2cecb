// Tests processes that a launcher has started but cannot end.
#include "copus/comm/job/start/rank_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"

namespace {

// This process seems to hang in the kernel: the test's waitpid() never reports its end.
std::atomic<pid_t> hanging = 0;

}  // namespace

// Replaces the function of the C library.
extern "C" pid_t waitpid(pid_t pid, int* status, int options) {
  if (pid == hanging && (options & WNOHANG) != 0) return 0;
  return static_cast<pid_t>(::syscall(SYS_wait4, pid, status, options, nullptr));
}

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Set in a child process, which runs the same test program but does nothing until it is killed.
constexpr const char* is_rank = "COPUS_TEST_IS_RANK";

void sleep_where_this_is_a_rank() {
  if (std::getenv(is_rank) != nullptr) std::this_thread::sleep_for(std::chrono::minutes(1));
}

RankStart rank(int64_t number) {
  RankStart start;
  start.number = number;
  start.variables = {concat(is_rank, "=1")};
  return start;
}

TEST(RankProcesses, NobodyWaitsForOneThatHangsInTheKernel) {
  sleep_where_this_is_a_rank();
  testing::internal::CaptureStderr();
  pid_t pid = 0;
  {
    RankProcesses processes({"--gtest_filter=RankProcesses.NobodyWaitsForOneThatHangsInTheKernel"});
    RankProcess& process = processes.start(rank(3));
    hanging = pid = process.pid;
    process.signal(SIGKILL);
    const auto deadline = std::chrono::steady_clock::now() + RankProcesses::ends_within / 2;
    while (std::chrono::steady_clock::now() < deadline) {
      EXPECT_TRUE(processes.reap().empty());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    while (processes.reap().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(process.ended);
    EXPECT_TRUE(process.killed_by({SIGKILL}));
    EXPECT_TRUE(processes.all_ended());
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("rank 3 (pid "), HasSubstr("hangs in the kernel")));
  hanging = 0;
  ::waitpid(pid, nullptr, 0);
}

// Ctrl-C reaches a whole process group, and ranks must get it only from their launcher.
TEST(RankProcesses, TheyHaveAGroupOfTheirOwnAlsoAfterAllBeforeHaveEnded) {
  sleep_where_this_is_a_rank();
  RankProcesses processes({"--gtest_filter=RankProcesses.TheyHaveAGroupOfTheirOwnAlsoAfterAllBeforeHaveEnded"});
  for (int64_t number = 0; number < 4; number += 2) {
    RankProcess& first = processes.start(rank(number));
    RankProcess& second = processes.start(rank(number + 1));
    for (const RankProcess* process : {&first, &second}) EXPECT_EQ(::getpgid(process->pid), first.pid) << number;
    for (RankProcess* process : {&first, &second}) process->signal(SIGKILL);
    while (!processes.all_ended()) processes.reap();
  }
}

TEST(RankProcesses, TheLimitOnProcessesIsNamed) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become a user who has no other process";
  const auto limited = [] {
    const rlimit limit{1, 1};
    setrlimit(RLIMIT_NPROC, &limit);
    constexpr uid_t nobody_else = 54'322;
    if (::setuid(nobody_else) != 0) std::exit(1);
    RankProcesses processes({});
    std::fputs(user_error([&] { processes.start(rank(3)); }).c_str(), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(limited(), testing::ExitedWithCode(0), "cannot start rank 3 under ulimit -u 1: ");
}

TEST(RankProcesses, NoneIsLeftAtTheEnd) {
  sleep_where_this_is_a_rank();
  pid_t pid = 0;
  {
    RankProcesses processes({"--gtest_filter=RankProcesses.NoneIsLeftAtTheEnd"});
    pid = processes.start(rank(0)).pid;
  }
  EXPECT_EQ(::kill(pid, 0), -1);
}

}  // namespace
}  // namespace copus
