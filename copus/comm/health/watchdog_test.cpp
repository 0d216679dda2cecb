#include "copus/comm/health/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <stdexcept>
#include <thread>

#include "copus/base/error.h"

namespace copus {
namespace {

using testing::HasSubstr;

// Two ranks over memory that a child process shares.
class WatchdogTest : public testing::Test {
 protected:
  static constexpr int64_t size = 2;

  WatchdogTest() {
    void* const address = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    COPUS_CHECK(address != MAP_FAILED);
    region_ = static_cast<std::byte*>(address);
  }
  ~WatchdogTest() override { ::munmap(region_, bytes_); }

  // Waits without a limit of its own: if the condition never holds, CTest's time limit ends the test.
  template <class Condition>
  static void wait_until(Condition condition) {
    while (!condition()) std::this_thread::yield();
  }

  // Starts a rank as a separate process, which runs `body` and then ends with code 0.
  template <class Body>
  pid_t start(int64_t rank, Body body) {
    const pid_t pid = ::fork();
    COPUS_CHECK(pid >= 0);
    if (pid > 0) return pid;
    SharedHealth health(region_, rank, size);
    body(health);
    ::_exit(0);
  }

  static int status_of(pid_t pid) {
    int status = 0;
    COPUS_CHECK(::waitpid(pid, &status, 0) == pid);
    return status;
  }

  const size_t bytes_ = health_bytes(size);
  std::byte* region_ = nullptr;
};

[[noreturn]] void ignore_everything() {
  for (;;) ::pause();
}

TEST_F(WatchdogTest, SendsHeartbeatsUntilItLeaves) {
  SharedHealth health(region_, 0, size);
  const SharedHealth other(region_, 1, size);
  {
    const Watchdog watchdog(health);
    EXPECT_GT(other.signs_of(0).heartbeats, 0) << "others may look right after";
    wait_until([&] { return other.signs_of(0).heartbeats > 3; });
    EXPECT_FALSE(other.signs_of(0).left);
  }
  EXPECT_TRUE(other.signs_of(0).left);
  EXPECT_FALSE(other.failure()) << "it left in good order";
}

TEST_F(WatchdogTest, AnExceptionThatEndsTheRankIsAFailure) {
  SharedHealth health(region_, 0, size);
  health.set_place("step 3");
  const auto fail_while_watched = [&] {
    const Watchdog watchdog(health);
    throw UserError("the disk is full");
  };
  EXPECT_THROW(fail_while_watched(), UserError);
  ASSERT_TRUE(health.failure());
  EXPECT_EQ(health.failure()->rank, 0);
  EXPECT_EQ(health.failure()->place, "step 3");
}

TEST_F(WatchdogTest, EndsAProcessThatDoesNotNoticeTheFailure) {
  SharedHealth health(region_, 0, size);
  const pid_t pid = start(1, [](SharedHealth& own) {
    const Watchdog watchdog(own);
    ignore_everything();
  });
  wait_until([&] { return health.signs_of(1).heartbeats > 0; });
  health.report({0, "", "killed by signal 9 (Killed)"});
  const int status = status_of(pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
}

TEST_F(WatchdogTest, LeavesAProcessThatDoesNotNoticeToTheLauncherWhereTheJobGoesOn) {
  SharedHealth health(region_, 0, size);
  const pid_t pid = start(1, [](SharedHealth& own) {
    const Watchdog watchdog(own, {}, AfterFailure::leave_it_to_the_launcher);
    ignore_everything();
  });
  wait_until([&] { return health.signs_of(1).heartbeats > 0; });
  health.report({0, "", "killed by signal 9 (Killed)"});
  const uint64_t before = health.signs_of(1).heartbeats;
  // After these heartbeats, a watchdog that ends its process would have done so.
  wait_until([&] { return health.signs_of(1).heartbeats > before + 15 || ::waitpid(pid, nullptr, WNOHANG) != 0; });
  EXPECT_GT(health.signs_of(1).heartbeats, before + 15);
  ::kill(pid, SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(status_of(pid)));
}

TEST_F(WatchdogTest, NamesAKilledProcess) {
  SharedHealth health(region_, 0, size);
  const pid_t pid = start(1, [](SharedHealth& own) {
    own.set_place("step 7, forward");
    const Watchdog watchdog(own);
    ignore_everything();
  });
  wait_until([&] { return health.signs_of(1).heartbeats > 0; });
  testing::internal::CaptureStderr();
  {
    const Watchdog watchdog(health);
    ::kill(pid, SIGKILL);
    wait_until([&] { return health.failure().has_value(); });
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr(concat("rank 1 (pid ", pid, ") failed at step 7, forward: its process ended")));
  status_of(pid);
}

TEST_F(WatchdogTest, NamesARankThatStalls) {
  SharedHealth health(region_, 0, size);
  SharedHealth waiting(region_, 1, size);
  waiting.beat();
  waiting.begin_wait();
  testing::internal::CaptureStderr();
  {
    const Watchdog watchdog(health, {.stall_seconds = 0.3});
    health.set_place("step 7, backward of micro-batch 3");
    health.set_expected_step_seconds(1e-3);
    wait_until([&] { return health.failure().has_value(); });
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("failed at step 7, backward of micro-batch 3: stalled"));
  EXPECT_EQ(health.failure()->rank, 0);
}

}  // namespace
}  // namespace copus
