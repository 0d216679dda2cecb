#include "copus/comm/health/fault_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "copus/base/error.h"

namespace copus {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FaultPoint, AFaultIsReadAsItIsWritten) {
  EXPECT_THAT(parse_faults(""), IsEmpty());
  const Fault first{.place = "step 20, forward", .process = 1, .passes = 2, .kind = Fault::Kind::kill};
  const Fault second{.place = "regrouping: settling", .process = 12, .passes = 1, .kind = Fault::Kind::pause};
  EXPECT_THAT(parse_faults("step 20, forward@1#2:KILL;regrouping: settling@12#1:PAUSE"), ElementsAre(first, second));
}

TEST(FaultPoint, WhatIsNoFaultIsRefused) {
  for (const char* text : {"place", "@1#1:KILL", "place@1:KILL", "place@1#0:KILL", "place@-1#1:KILL", "place@1#1:OTHER",
                           "place@1#1:", "place@1#1:KILL;;", "place#1@1:KILL"}) {
    EXPECT_THROW(parse_faults(text), UserError) << text;
  }
}

}  // namespace
}  // namespace copus
