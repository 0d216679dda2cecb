#include "copus/workshop/self_test/faults/fault_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace copus {
namespace {

using ::testing::HasSubstr;

TEST(FaultReport, CountsPlacesWhateverTheirStepAndMicroBatch) {
  testing::internal::CaptureStdout();
  FaultReport report(FaultTestOptions{.faults = 5, .ranks = 2, .seed = 1, .folder = {}}, /*json=*/false);
  for (const char* place : {"step 7, activations of micro-batch 3", "step 12, activations of micro-batch 0",
                            "evaluation after step 9", "switching after step 40: moving", ""}) {
    report.add(FaultOutcome{.kind = fault_kinds().data(), .place = place});
  }
  report.finish(1);
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              HasSubstr("start: 1; activations of micro-batch: 2; evaluation after step: 1; switching after step: "
                        "moving: 1\n"));
}

}  // namespace
}  // namespace copus
