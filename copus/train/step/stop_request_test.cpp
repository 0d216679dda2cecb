#include "copus/train/step/stop_request.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

namespace copus {
namespace {

TEST(StopRequest, NotesSignalsInsteadOfEnding) {
  {
    const StopRequest stop(0);
    EXPECT_EQ(stop.reason(1e9), StopReason::none);
    std::raise(SIGINT);
    EXPECT_EQ(stop.reason(0), StopReason::interrupt);
  }
  const StopRequest stop(0);
  EXPECT_EQ(stop.reason(0), StopReason::none);
  std::raise(SIGTERM);
  EXPECT_EQ(stop.reason(0), StopReason::terminate);
}

TEST(StopRequest, ASecondInterruptEndsTheProcess) {
  const auto interrupt_twice = [] {
    const StopRequest stop(0);
    std::raise(SIGINT);
    std::raise(SIGINT);
  };
  EXPECT_EXIT(interrupt_twice(), ::testing::KilledBySignal(SIGINT), "");
}

TEST(StopRequest, ASecondTerminateEndsTheProcessUnlessItIsTheFirstOnceMore) {
  const auto terminate_twice = [](std::chrono::milliseconds pause) {
    const StopRequest stop(0);
    std::raise(SIGTERM);
    std::this_thread::sleep_for(pause);
    std::raise(SIGTERM);
    std::exit(stop.reason(0) == StopReason::terminate ? 0 : 1);
  };
  EXPECT_EXIT(terminate_twice(std::chrono::milliseconds(0)), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(terminate_twice(std::chrono::milliseconds(1100)), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopRequest, NoticesStopTheRunAndNeverEndTheProcess) {
  for (const int notice : {SIGHUP, SIGUSR1, SIGUSR2}) {
    const StopRequest stop(0);
    std::raise(notice);
    EXPECT_EQ(stop.reason(0), StopReason::terminate) << notice;
    std::raise(notice);
    std::raise(SIGTERM);  // the first one; a scheduler sends it some time after its notice
    std::raise(notice);
    EXPECT_EQ(stop.reason(0), StopReason::terminate) << notice;
  }
}

TEST(StopRequest, OnceARunIsStoppedNoSignalChangesItsExitCode) {
  const auto end_run = [](bool is_stopped) {
    {
      const StopRequest stop(0);
      if (is_stopped) std::raise(SIGUSR1);
    }
    std::raise(SIGTERM);
    std::raise(SIGUSR1);
    std::exit(75);
  };
  EXPECT_EXIT(end_run(true), ::testing::ExitedWithCode(75), "");
  EXPECT_EXIT(end_run(false), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopRequest, ANoticeAfterAnInterruptLeavesItAnInterrupt) {
  const StopRequest stop(0);
  std::raise(SIGINT);
  std::raise(SIGHUP);
  EXPECT_EQ(stop.reason(0), StopReason::interrupt);
}

TEST(StopRequest, AnIgnoredNoticeStaysIgnored) {
  std::signal(SIGHUP, SIG_IGN);
  {
    const StopRequest stop(0);
    std::raise(SIGHUP);
    EXPECT_EQ(stop.reason(0), StopReason::none);
  }
  EXPECT_EQ(std::signal(SIGHUP, SIG_DFL), SIG_IGN);
}

TEST(StopRequest, TheTimeLimitLeavesTheReserve) {
  const StopRequest stop(1000);
  EXPECT_EQ(stop.reason(10), StopReason::none);
  EXPECT_EQ(stop.reason(1000), StopReason::time_limit);
  EXPECT_TRUE(stop.has_time_for(10));
  EXPECT_FALSE(stop.has_time_for(1000));
}

TEST(StopRequest, ThereIsTimeForAllWithoutALimit) { EXPECT_TRUE(StopRequest(0).has_time_for(1e9)); }

TEST(StopRequest, TheTimeLimitLeavesTimeForAnEndAsLongAsTheStart) {
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // this process is then at least as old
  const StopRequest stop(1000);
  EXPECT_EQ(stop.reason(999.9), StopReason::time_limit);
  EXPECT_EQ(stop.reason(900), StopReason::none)
      << "a process that waited long before it came in needs a minute at most";
}

}  // namespace
}  // namespace copus
