// Curves of a page: which points are selected, and how they are thinned.
#include "copus/report/drawn/page_curves.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace copus {
namespace {

std::vector<StepRecord> recorded_steps(int64_t count, const std::function<void(StepRecord&)>& fill) {
  std::vector<StepRecord> records(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    StepRecord& record = records[static_cast<size_t>(i)];
    record.step = i + 1;
    record.consumed_tokens = 100 * record.step;
    record.elapsed_seconds = 0.5 * static_cast<double>(record.step);
    record.loss = 2 + std::sin(static_cast<double>(record.step));
    fill(record);
  }
  return records;
}

TEST(PageCurves, TheMoreRunsTheFewerPointsEach) {
  EXPECT_EQ(most_points_of_a_curve(1), 2000U);
  EXPECT_EQ(most_points_of_a_curve(3), 2000U);
  EXPECT_EQ(most_points_of_a_curve(6), 1000U);
  EXPECT_EQ(most_points_of_a_curve(24), 250U);
  EXPECT_EQ(most_points_of_a_curve(1000), 200U);
}

TEST(PageCurves, ALongRunIsThinnedAndKeepsItsEndsAndSpikes) {
  const auto curves = curves_of(recorded_steps(20'000,
                                               [](StepRecord& record) {
                                                 if (record.step == 5001) record.loss = 50;
                                                 if (record.step == 5003) record.loss = std::nan("");
                                                 if (record.step % 1000 == 0) record.held_out_loss = 1.25;
                                               }),
                                2000);
  const auto& loss = curves.at("loss");
  const auto steps = loss.at("step").get<std::vector<int64_t>>();
  EXPECT_LE(steps.size(), 2000U);
  EXPECT_GE(steps.size(), 1900U);
  EXPECT_EQ(steps.front(), 1);
  EXPECT_EQ(steps.back(), 20'000);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end(), std::less_equal<>())) << "in order, none twice";
  EXPECT_THAT(steps, testing::Not(testing::Contains(5003)));
  EXPECT_THAT(loss.at("value").get<std::vector<double>>(), testing::Contains(50));
  EXPECT_EQ(curves.at("held_out_loss").at("value").size(), 20U);
  EXPECT_LT(curves.dump().size(), 2'000'000U) << "bytes";
}

TEST(PageCurves, EachHeldOutSourceHasItsCurve) {
  const auto records = recorded_steps(4000, [](StepRecord& record) {
    record.held_out_loss = 2;
    record.held_out_losses.push_back({"a.txt", 3});
    if (record.step > 10) record.held_out_losses.push_back({"b.txt", 1});
    for (int i = 0; i < 20; ++i) record.held_out_losses.push_back({"other " + std::to_string(i), 1});
  });
  const auto curves = curves_of(records, 2000);
  const auto& sources = curves.at("held_out_sources");
  ASSERT_EQ(sources.size(), 8U);
  EXPECT_EQ(sources[0].at("name"), "a.txt");
  EXPECT_EQ(sources[0].at("value").front(), 3);
  EXPECT_EQ(sources[1].at("step").front(), 11) << "added later";
  size_t points = 0;
  for (const auto& curve : sources) points += curve.at("value").size();
  EXPECT_LE(points, 2000U) << "together";
}

TEST(PageCurves, NeighbouringStepsOfALongRunStayApart) {
  const auto curves = curves_of(recorded_steps(2000, [](StepRecord& record) { record.elapsed_seconds += 2e6; }), 2000);
  const auto seconds = curves.at("loss").at("seconds").get<std::vector<double>>();
  EXPECT_EQ(std::adjacent_find(seconds.begin(), seconds.end(), std::greater_equal<>()), seconds.end());
  EXPECT_EQ(seconds.front(), 2'000'000.5);
}

TEST(PageCurves, TheSmoothedCurveDoesNotLag) {
  const auto curves = curves_of(
      recorded_steps(501, [](StepRecord& record) { record.loss = 10 - 0.01 * static_cast<double>(record.step); }),
      2000);
  const auto& loss = curves.at("loss");
  for (size_t i = 0; i < loss.at("step").size(); ++i) {
    // The smoothed curve follows a straight line, except near the ends, which have neighbours on only one side.
    const double tolerance = i > 100 && i < 400 ? 1e-5 : 0.06;
    EXPECT_NEAR(loss.at("smoothed")[i].get<double>(), loss.at("value")[i].get<double>(), tolerance) << i;
  }
}

// An average over both sides of a switch would show a ramp of throughput that did not exist.
TEST(PageCurves, RatesAreNotSmoothedAcrossASwitch) {
  const auto curves = curves_of(recorded_steps(1000,
                                               [](StepRecord& record) {
                                                 record.global_batch = record.step <= 500 ? 8 : 16;
                                                 record.step_seconds = 2;
                                               }),
                                2000);
  const auto& throughput = curves.at("throughput").at("smoothed");
  EXPECT_EQ(throughput[499], 4);
  EXPECT_EQ(throughput[500], 8);
}

TEST(PageCurves, StepsKeepTheLastPointBeforeEachChange) {
  const auto curves = curves_of(recorded_steps(100,
                                               [](StepRecord& record) {
                                                 record.global_batch = record.step <= 40 ? 8 : 16;
                                                 record.micro_batch = 4;
                                                 record.strategy =
                                                     record.step <= 60
                                                         ? ParallelStrategy{.data_parallel = 2, .pipeline_parallel = 2}
                                                         : ParallelStrategy{.data_parallel = 4};
                                               }),
                                2000);
  EXPECT_EQ(curves.at("global_batch").at("step"), nlohmann::json({1, 40, 100}));
  EXPECT_EQ(curves.at("global_batch").at("value"), nlohmann::json({8, 8, 16}));
  EXPECT_EQ(curves.at("micro_batch").at("step"), nlohmann::json({1, 100}));
  EXPECT_EQ(curves.at("layout").at("step"), nlohmann::json({1, 60, 100}));
  EXPECT_EQ(curves.at("layout").at("value"), nlohmann::json({"d=2,t=1,p=2", "d=2,t=1,p=2", "d=4,t=1,p=1"}));
}

TEST(PageCurves, GoodputComesWithItsTwoHalvesAndPausesWithTheirSeconds) {
  const auto curves = curves_of(recorded_steps(2,
                                               [](StepRecord& record) {
                                                 record.global_batch = 12;
                                                 record.step_seconds = 0.25;
                                                 record.statistical_efficiency = 0.75;
                                                 record.goodput = 36;
                                                 record.predicted_step_seconds = 0.2;
                                                 if (record.step == 2) record.switch_seconds = 1.5;
                                               }),
                                2000);
  EXPECT_EQ(curves.at("throughput").at("value"), nlohmann::json({48, 48}));
  EXPECT_EQ(curves.at("efficiency").at("value"), nlohmann::json({0.75, 0.75}));
  EXPECT_EQ(curves.at("goodput").at("value"), nlohmann::json({36, 36}));
  EXPECT_EQ(curves.at("step_seconds").at("value"), nlohmann::json({0.25, 0.25}));
  EXPECT_EQ(curves.at("predicted_step_seconds").at("value"), nlohmann::json({0.2, 0.2}));
  EXPECT_EQ(curves.at("pause").at("step"), nlohmann::json({2}));
  EXPECT_EQ(curves.at("pause").at("value"), nlohmann::json({1.5}));
}

TEST(PageCurves, TheNoiseScaleHasItsInterval) {
  const auto curves = curves_of(recorded_steps(3,
                                               [](StepRecord& record) {
                                                 record.noise_scale_low = record.step >= 2 ? 20 : 0;
                                                 if (record.step < 3) return;
                                                 record.noise_scale = 31.25;
                                                 record.noise_scale_high = 50;
                                                 record.critical_batch = 62.5;
                                               }),
                                2000);
  const auto& noise_scale = curves.at("noise_scale");
  EXPECT_EQ(noise_scale.at("step"), nlohmann::json({2, 3})) << "a bound of zero tells nothing";
  EXPECT_EQ(noise_scale.at("value"), nlohmann::json({nullptr, 31.25}));
  EXPECT_EQ(noise_scale.at("low"), nlohmann::json({20, 20}));
  EXPECT_EQ(noise_scale.at("high"), nlohmann::json({nullptr, 50}));
  EXPECT_EQ(curves.at("critical_batch").at("step"), nlohmann::json({3}));
}

TEST(PageCurves, WhatTheLogLacksIsLeftOut) {
  const auto curves = curves_of(recorded_steps(3, [](StepRecord&) {}), 2000);
  for (const char* name : {"noise_scale", "critical_batch", "goodput", "efficiency", "throughput", "pause",
                           "held_out_loss", "held_out_sources", "predicted_step_seconds"}) {
    EXPECT_FALSE(curves.contains(name)) << name;
  }
  EXPECT_TRUE(curves.contains("loss"));
}

}  // namespace
}  // namespace copus
