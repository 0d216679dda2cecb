#include "copus/train/recording/step_clock.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "copus/train/testing/observed_world.h"

namespace copus {
namespace {

TEST(StepClock, WhatFollowsTheAgreementCountsWithTheNextStep) {
  ObservedWorld world;
  StepClock clock(world);
  world.advance_to(10);
  clock.begin();
  EXPECT_EQ(clock.begun_at(), 10);
  world.advance_to(14);
  clock.end(/*agreed_at=*/11);
  world.advance_to(100);  // time between steps, such as an evaluation
  clock.begin();
  EXPECT_EQ(clock.begun_at(), 100 - 3);
  clock.end(/*agreed_at=*/103);  // another rank was slower
  clock.begin();
  EXPECT_EQ(clock.begun_at(), 100);
}

TEST(StepClock, WhatIsLeftOutCountsWithNoStep) {
  ObservedWorld world;
  StepClock clock(world);
  world.advance_to(10);
  clock.begin();
  clock.leave_out([&] { world.advance_to(12); });
  world.advance_to(14);
  clock.end(/*agreed_at=*/10);
  clock.begin();
  EXPECT_EQ(clock.begun_at(), 14 - 2);
  world.advance_to(20);
  clock.end(/*agreed_at=*/15);
  clock.begin();
  EXPECT_EQ(clock.begun_at(), 20 - 5) << "it is left out once";
}

TEST(StepClock, OnlyWithinAStepAStallIsLookedFor) {
  constexpr std::chrono::milliseconds length(20);
  ObservedWorld world;
  StepClock clock(world);
  clock.begin();
  EXPECT_EQ(world.expected_step_seconds(), 0) << "nothing is known of the first step";
  std::this_thread::sleep_for(length);
  clock.end(0);
  EXPECT_EQ(world.expected_step_seconds(), 0);
  clock.begin();
  const double first = world.expected_step_seconds();
  EXPECT_GE(first, std::chrono::duration<double>(length).count());
  clock.end(0);
  clock.begin();
  EXPECT_GE(world.expected_step_seconds(), 0.9 * first) << "a quick step lowers it little";
  clock.end(0);
  clock.forget_expectation();
  clock.begin();
  EXPECT_EQ(world.expected_step_seconds(), 0);
}

TEST(StepClock, APauseIsToldOnce) {
  ObservedWorld world;
  StepClock clock(world);
  EXPECT_EQ(clock.take_pause(), std::nullopt);
  clock.add_pause(0.5);
  EXPECT_EQ(clock.take_pause(), 0.5);
  EXPECT_EQ(clock.take_pause(), std::nullopt);
}

}  // namespace
}  // namespace copus
