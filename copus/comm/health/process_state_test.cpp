#include "copus/comm/health/process_state.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace copus {
namespace {

TEST(ProcessState, FollowsAProcessToItsEnd) {
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    for (;;) ::pause();
  }
  EXPECT_EQ(process_state(pid), ProcessState::running);
  int status = 0;
  ::kill(pid, SIGSTOP);
  ::waitpid(pid, &status, WUNTRACED);
  EXPECT_EQ(process_state(pid), ProcessState::stopped);
  ::kill(pid, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(process_state(pid), ProcessState::gone) << "before its parent has noticed";
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(process_state(pid), ProcessState::gone);
}

TEST(ProcessState, KnowsWhetherAThreadIsRunnable) {
  EXPECT_TRUE(has_runnable_thread(::getpid()));  // this one
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    while (true) ::pause();
  }
  while (has_runnable_thread(pid)) ::usleep(1000);  // until it pauses
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  EXPECT_FALSE(has_runnable_thread(pid));
}

}  // namespace
}  // namespace copus
