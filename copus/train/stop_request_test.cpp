#include "copus/train/stop_request.h"

#include <gtest/gtest.h>

#include <csignal>

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

TEST(StopRequest, TheTimeLimitLeavesTheReserve) {
  const StopRequest stop(1000);
  EXPECT_EQ(stop.reason(10), StopReason::none);
  EXPECT_EQ(stop.reason(1000), StopReason::time_limit);
}

}  // namespace
}  // namespace copus
