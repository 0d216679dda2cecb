#include "copus/orchestrator/controller/switch_outcomes.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <optional>

#include "copus/base/numbers/mix_bits.h"
#include "copus/orchestrator/testing/small_run.h"
#include "copus/statistics/efficiency.h"

namespace copus {
namespace {

double noise(int64_t i) { return static_cast<double>(mix_bits(static_cast<uint64_t>(i)) >> 11) * 0x1p-52 - 1; }

TEST(LossTrend, IsTheLineThroughThePoints) {
  std::vector<LossPoint> points;
  for (int i = 0; i < 20; ++i) points.push_back({100 + 0.5 * i, 7 - 0.25 * (0.5 * i)});
  const LossTrend exact = loss_trend(points);
  EXPECT_NEAR(exact.per_second, -0.25, 1e-12);
  EXPECT_NEAR(exact.error, 0, 1e-6);
  EXPECT_TRUE(exact.is_significant());
}

// Standard error by hand: residuals +1, -1, -1, +1 about a flat line at 0, 1, 2, 3 leave s^2 = 4 / 2 and Sxx = 5.
TEST(LossTrend, ErrsByTheScatterOfThePoints) {
  const LossTrend trend = loss_trend({{0, 1}, {1, -1}, {2, -1}, {3, 1}});
  EXPECT_NEAR(trend.per_second, 0, 1e-12);
  EXPECT_NEAR(trend.error, std::sqrt(2.0 / 5), 1e-12);
  EXPECT_FALSE(trend.is_significant());
}

TEST(LossTrend, ALossThatRisesOrOnlyScattersDoesNotFall) {
  std::vector<LossPoint> rising, scattered;
  for (int i = 0; i < 50; ++i) {
    rising.push_back({1.0 * i, 0.1 * i});
    scattered.push_back({1.0 * i, noise(i)});
  }
  EXPECT_FALSE(loss_trend(rising).is_significant());
  EXPECT_FALSE(loss_trend(scattered).is_significant());
}

class SwitchOutcomesTest : public testing::Test {
 protected:
  SwitchOutcomesTest() { to_.global_batch = 16; }

  // Adds steps of `seconds` seconds, in which the loss falls by `loss_per_second`, after a jump that fades within a few
  // steps.
  void steps(int64_t count, const Configuration& configuration, double seconds, double loss_per_second,
             double jump = 0) {
    for (int64_t i = 0; i < count; ++i) {
      Observation observation;
      observation.step = ++step_;
      observation.consumed_samples = samples_ += configuration.global_batch;
      observation.step_seconds = seconds;
      observation.elapsed_seconds = elapsed_ += seconds;
      loss_ -= loss_per_second * seconds;
      observation.loss = loss_ + jump * std::exp(-0.5 * static_cast<double>(i)) + 1e-3 * noise(step_);
      observation.noise_scale = phi_;
      outcomes_.observe(observation, i >= 2);
    }
  }

  void move(double gain = 0.5) {
    outcomes_.moved({.switched = {.decision_step = step_ - 1,
                                  .from = from_,
                                  .to = to_,
                                  .predicted_step_seconds = 1.25,
                                  .predicted_gain = gain},
                     .from_step_seconds = 1,
                     .to_rate_factor = 1.25},
                    samples_, Knowledge());
  }

  Configuration from_ = configuration_of(small_run()), to_ = from_;
  SwitchOutcomes outcomes_{config_with_dwell()};
  int64_t step_ = 0, samples_ = 0;
  double elapsed_ = 0, loss_ = 5, phi_ = 12;

 private:
  static RunConfig config_with_dwell() {
    RunConfig config = small_run();
    config.noise_scale.calibration = 2;
    config.noise_scale.critical_updates = 0;
    config.adapt.dwell_samples = 200;
    config.adapt.alpha = 0.5;
    return config;
  }
};

TEST_F(SwitchOutcomesTest, ComparesWhatWasPromisedWithWhatCame) {
  steps(60, from_, 1, 0.01);
  phi_ = 20;
  move();
  steps(60, to_, 1.5, 0.02, 3);
  const std::vector<Realised> realised = outcomes_.take(Knowledge());
  ASSERT_EQ(realised.size(), 1);
  EXPECT_EQ(realised[0].decision_step, 59);
  EXPECT_EQ(realised[0].from, from_);
  EXPECT_EQ(realised[0].to, to_);
  EXPECT_EQ(realised[0].predicted_step_seconds, 1.25);
  EXPECT_EQ(realised[0].realised_step_seconds, 1.5);
  EXPECT_EQ(realised[0].predicted_gain, 0.5);
  // The gain at the noise scale since the switch, with B_c = 2 x 20, B_ref = 8 and the rates that were used.
  EXPECT_NEAR(realised[0].realised_gain, 16 / 1.5 * 48 / 56 * 1.25 / (8 / 1.0) - 1, 1e-12);
  ASSERT_TRUE(realised[0].progress_ratio);
  EXPECT_NEAR(*realised[0].progress_ratio, 2, 0.02) << "without the jump after the switch";
  EXPECT_FALSE(outcomes_.is_due());
}

TEST_F(SwitchOutcomesTest, WaitsForTheDwell) {
  steps(20, from_, 1, 0.01);
  move();
  steps(12, to_, 1, 0.01);
  EXPECT_FALSE(outcomes_.is_due()) << "192 of 200 samples";
  steps(1, to_, 1, 0.01);
  EXPECT_TRUE(outcomes_.is_due());
}

TEST_F(SwitchOutcomesTest, TheNextSwitchEndsTheWindow) {
  steps(20, from_, 1, 0.01);
  move();
  steps(12, to_, 2, 0.01);  // ten of them are measured
  move();
  ASSERT_TRUE(outcomes_.is_due());
  EXPECT_EQ(outcomes_.take(Knowledge()).size(), 1);
  steps(5, to_, 2, 0.01);
  move();
  EXPECT_FALSE(outcomes_.is_due()) << "of five steps nothing can be said";
}

TEST_F(SwitchOutcomesTest, WithoutATrendThereIsNoRatio) {
  steps(60, from_, 1, 0.01);
  move();
  steps(60, to_, 1, 0);
  EXPECT_EQ(outcomes_.take(Knowledge())[0].progress_ratio, std::nullopt);
  move();
  steps(60, to_, 1, 0.01);
  EXPECT_EQ(outcomes_.take(Knowledge())[0].progress_ratio, std::nullopt);
}

TEST_F(SwitchOutcomesTest, AStepWhoseTimeIsNotKnownIsLeftOut) {
  steps(60, from_, 1, 0.01);
  move();
  steps(30, to_, 1, 0.02);
  Observation timeless;
  timeless.elapsed_seconds = std::numeric_limits<double>::quiet_NaN();
  timeless.step_seconds = 1;
  timeless.consumed_samples = samples_;
  outcomes_.observe(timeless, true);
  steps(30, to_, 1, 0.02);
  const std::optional<double> ratio = outcomes_.take(Knowledge())[0].progress_ratio;
  ASSERT_TRUE(ratio);
  EXPECT_NEAR(*ratio, 2, 0.02);
}

TEST_F(SwitchOutcomesTest, CountsWhatWasMeasuredBeforeTheSwitch) {
  steps(20, from_, 1, 0.01);
  move();
  steps(20, to_, 1, 0.01);
  const Knowledge known = observe(Knowledge(), from_, {.compute = 3}, measurement_of({0.5, 0.5}));
  EXPECT_NEAR(outcomes_.take(known)[0].realised_gain, 16.0 * 32 / 40 * 1.25 / (8 / 0.5) - 1, 1e-12);
}

}  // namespace
}  // namespace copus
