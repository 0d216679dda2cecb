// Tests the recorder when a rank interrupts its work.
#include "copus/train/recording/step_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "copus/train/testing/observed_world.h"

namespace copus {
namespace {

using ::testing::ElementsAre;

constexpr StepRecorder::Computation backward_pass{.category = "pipeline", .name = "B", .part = StepPart::backward};
constexpr StepRecorder::Computation norm_pass{.category = "statistics", .name = "norm", .part = StepPart::optimizer};

TEST(StepRecorder, WhatIsDoneInBetweenLeavesPartsAndPlacesAsTheyWere) {
  ObservedWorld world;
  StepRecorder recorder(world);
  recorder.begin_step(3, true);
  const auto measure = [&] {
    recorder.aside(norm_pass, "a norm", [&] {
      EXPECT_EQ(world.place(), "step 3, a norm");
      world.advance_to(world.now() + 1);
    });
  };
  recorder.begin(backward_pass, "backward of micro-batch 0");
  world.advance_to(4);
  measure();
  EXPECT_EQ(world.place(), "step 3, backward of micro-batch 0");
  world.advance_to(7);
  recorder.wait_at("adding up gradients");
  world.advance_to(17);
  measure();
  EXPECT_EQ(world.place(), "step 3, adding up gradients");
  world.advance_to(27);
  recorder.end();

  PartSeconds expected{};
  expected[static_cast<size_t>(StepPart::backward)] = 4 + 2;
  expected[static_cast<size_t>(StepPart::optimizer)] = 1 + 1;
  EXPECT_EQ(recorder.take_seconds(), expected);
  std::vector<std::string> names;
  for (const TimelineEvent& event : recorder.events()) names.push_back(event.name);
  EXPECT_THAT(names, ElementsAre("B", "norm", "B", "norm"));
}

TEST(StepRecorder, AWaitIsToldAndLeavesTheEventWhole) {
  ObservedWorld world;
  StepRecorder recorder(world);
  recorder.begin_step(3, true);
  recorder.begin({.category = "pipeline", .name = "F", .part = StepPart::forward}, "forward of micro-batch 0");
  recorder.wait_aside("gathering the weights", [&] { EXPECT_EQ(world.place(), "step 3, gathering the weights"); });
  EXPECT_EQ(world.place(), "step 3, forward of micro-batch 0");
  recorder.be_at("evaluation after step 3");
  recorder.wait_aside("gathering the weights", [] {});
  EXPECT_EQ(world.place(), "evaluation after step 3");
  recorder.end();
  EXPECT_EQ(recorder.events().size(), 1);
}

}  // namespace
}  // namespace copus
