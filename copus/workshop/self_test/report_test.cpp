#include "copus/workshop/self_test/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace copus {
namespace {

using ::testing::HasSubstr;

TEST(SelfTestReport, SaysWhatCommunicatorsTake) {
  testing::internal::CaptureStdout();
  SelfTestReport(RankEnvironment{}, /*json=*/false)
      .add(CommunicatorCosts{.collective_bytes = 600.0 * (1 << 20),
                             .exchange_bytes = 0,
                             .message_bytes = 20.0 * (1 << 20),
                             .split_seconds = 0.25});
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              HasSubstr("a communicator takes 600 MiB for collectives, 0 B for exchanges, 20.0 MiB for messages of two "
                        "neighbours, and 250 ms to open"));
}

}  // namespace
}  // namespace copus
