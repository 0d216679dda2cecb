#include "copus/statistics/noise_scale.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/statistics/student_t.h"
#include "copus/statistics/testing/infinity.h"
#include "copus/statistics/testing/quadratic_loss.h"

namespace copus {
namespace {

constexpr NoiseWindow everything{infinity, 32, infinity};

// Returns the norms whose estimates are exactly these numbers.
NormObservation showing(const GradientNoise& noise, double large_batch, double small_batch = 1) {
  return {small_batch, noise.squared_gradient + noise.trace / small_batch, large_batch,
          noise.squared_gradient + noise.trace / large_batch};
}

double mean_squared_gradient(const NoiseAverage& average) { return average.squared_gradient / average.weight; }
double mean_trace(const NoiseAverage& average) { return average.trace / average.weight; }

NoiseAverage observe_times(int times, NoiseAverage average, const NormObservation& observation,
                           const NoiseWindow& window) {
  for (int i = 0; i < times; ++i) average = observe(average, observation, window);
  return average;
}

// --- The window ---

TEST(NoiseWindow, WhereTheWeightsStayEveryStepCountsAlike) {
  NoiseAverage average;
  for (int i = 0; i < 20; ++i) average = observe_alike(average, showing({1, 100}, 16));
  average = observe_alike(average, showing({22, 2200}, 4));  // far above its expectation, and with another batch
  EXPECT_EQ(average.steps, 21);
  EXPECT_DOUBLE_EQ(mean_squared_gradient(average), 2);
  EXPECT_DOUBLE_EQ(mean_trace(average), 200);
  EXPECT_DOUBLE_EQ(noise_scale(average)->squared_gradient.standard_error, 1);  // sqrt(20 * 1 + 20^2) / sqrt(21 * 20)
  const NoiseAverage same = observe_alike(average, showing({std::nan(""), 100}, 16));
  EXPECT_EQ(same, average);
}

TEST(NoiseWindow, AChangeOfBatchKeepsTheMemory) {
  const NoiseWindow window{2048, 32};
  for (const int before : {4, 16, 64}) {
    for (const int after : {4, 16, 64}) {
      SCOPED_TRACE(testing::Message() << before << " to " << after);
      auto average = observe_times(20 * 2048 / before, {}, showing({1, 100}, before), window);
      average = observe_times(2048 / after, average, showing({2, 300}, after), window);
      // After one window of samples the past has a weight of 1/e. Steps are not infinitesimal, so 2 % are tolerated.
      EXPECT_NEAR(mean_squared_gradient(average), 2 - std::exp(-1.0), 0.02);
      EXPECT_NEAR(mean_trace(average), 300 - 200 * std::exp(-1.0), 4);
    }
  }
}

TEST(NoiseWindow, ReachesOverSoManyStepsAtLeast) {
  const NoiseWindow window{2048, 32};
  for (const int batch : {64, 2048, 1000000}) {
    auto average = observe_times(1000, {}, showing({1, 100}, batch), window);
    average = observe_times(32, average, showing({2, 300}, batch), window);
    EXPECT_NEAR(mean_squared_gradient(average), 2 - std::exp(-1.0), 1e-9) << batch;
    EXPECT_NEAR(mean_trace(average), 300 - 200 * std::exp(-1.0), 1e-7) << batch;
  }
}

TEST(NoiseWindow, GrowsWithTheRunSoThatTheStartIsForgotten) {
  auto average = observe_times(12, {}, showing({60, 60}, 8), {});
  average = observe_times(116, average, showing({0.1, 2}, 8), {});
  // The first share s of the run has the weight s^(1 / largest_share).
  EXPECT_NEAR(mean_squared_gradient(average), 0.1 + 60 * std::pow(12.0 / 128, 4), 0.002);
  EXPECT_NEAR(mean_trace(average), 2 + 58 * std::pow(12.0 / 128, 4), 0.002);
}

TEST(NoiseWindow, AnInfiniteOneWeighsEverySampleAlike) {
  auto average = observe({}, showing({1, 100}, 2), everything);
  average = observe(average, showing({4, 20}, 6), everything);
  EXPECT_EQ(average.steps, 2);
  EXPECT_DOUBLE_EQ(mean_squared_gradient(average), (2 * 1 + 6 * 4) / 8.0);
  EXPECT_DOUBLE_EQ(mean_trace(average), (2 * 100 + 6 * 20) / 8.0);
}

TEST(NoiseAverage, IsARatioOfMeansAndNoMeanOfRatios) {
  NoiseAverage average;
  for (int i = 0; i < 5000; ++i)
    average = observe(average, showing(i % 2 == 0 ? GradientNoise{-1, 4} : GradientNoise{3, 8}, 8), everything);
  ASSERT_TRUE(noise_scale(average)->value.has_value());
  EXPECT_NEAR(*noise_scale(average)->value, 6, 1e-9);
}

TEST(NoiseAverage, IsAValueThatCanBeTakenElsewhere) {
  std::mt19937_64 random(1);
  const QuadraticLoss loss(10, 8);
  std::vector<NormObservation> observations;
  for (int i = 0; i < 60; ++i) observations.push_back(loss.draw(4, 2, random));
  NoiseAverage whole;
  for (const auto& observation : observations) whole = observe(whole, observation, {});
  NoiseAverage first;
  for (int i = 0; i < 25; ++i) first = observe(first, observations[i], {});
  NoiseAverage second = first;
  for (int i = 25; i < 60; ++i) second = observe(second, observations[i], {});
  EXPECT_EQ(second, whole);
  EXPECT_EQ(noise_scale(second)->low, noise_scale(whole)->low);
}

// --- Outliers ---

TEST(NoiseAverage, StepsThatAreNotFiniteDoNotCount) {
  const NoiseAverage average = observe_times(3, {}, showing({1, 10}, 8), {});
  for (const double bad : {infinity, -infinity, std::nan("")}) {
    EXPECT_EQ(observe(average, {1, bad, 8, 2}, {}), average);
    EXPECT_EQ(observe(average, {1, 11, 8, bad}, {}), average);
    EXPECT_EQ(observe(average, {1, bad, 8, bad}, {}), average);
  }
  EXPECT_THROW(observe(average, {8, 1, 8, 1}, {}), InternalError);
}

// A run that measures every eighth step forgets as much of its past as a run that measures every step.
TEST(NoiseWindow, AStepThatStandsForSeveralWeighsAsTheyDo) {
  const NoiseWindow window{.samples = 1024};
  NoiseAverage all, eighths;
  for (int64_t step = 1; step <= 1000; ++step) {
    const NormObservation observation = showing({step <= 800 ? 1.0 : 4.0, 100}, 4);
    all = observe(all, observation, window);
    if (step % 8 == 0) eighths = observe(eighths, observation, 8 * observation.large_batch, window);
  }
  EXPECT_EQ(eighths.steps, 125);
  EXPECT_DOUBLE_EQ(eighths.samples, all.samples);
  EXPECT_NEAR(eighths.squared_gradient / eighths.weight, all.squared_gradient / all.weight, 0.02);
  // A few large steps still leave at least `least_steps` in the window.
  const NoiseAverage capped = observe({}, showing({1, 100}, 4), 1e6, window);
  EXPECT_EQ(capped.samples, window.samples / window.least_steps);
}

TEST(NoiseAverage, AnOutlierMovesItLittle) {
  const QuadraticLoss loss(10, 8);
  const auto noise_scale_after = [&](const std::function<void(NormObservation&)>& spoil) {
    std::mt19937_64 random(7);
    NoiseAverage average;
    for (int i = 0; i < 800; ++i) {
      NormObservation norms = loss.draw(4, 2, random);
      if (i == 600) spoil(norms);
      average = observe(average, norms, {4096, 32});
    }
    return *noise_scale(average)->value;
  };
  const double usual = noise_scale_after([](NormObservation&) {});
  EXPECT_NEAR(usual, 8, 0.8);
  EXPECT_NEAR(noise_scale_after([](NormObservation& norms) { norms.large_squared_norm *= 1e4; }), usual, 0.1 * usual);
  EXPECT_NEAR(noise_scale_after([](NormObservation& norms) { norms.small_squared_norm *= 1e4; }), usual, 0.1 * usual);
  EXPECT_NEAR(noise_scale_after([](NormObservation& norms) {
                norms.small_squared_norm *= 1e4;
                norms.large_squared_norm *= 1e4;
              }),
              usual, 0.1 * usual);
}

// Expected norms for |G|^2 = 1 and tr(Sigma) = 8 are A = 9 for one sample and C = 2 for eight.
TEST(NoiseAverage, AnOutlierCountsTheLessTheFartherItIsBeyondTenTimesItsExpectation) {
  const auto weight_of = [](int steps_before, double small_squared_norm, double large_squared_norm) {
    const auto before = observe_times(steps_before, {}, showing({1, 8}, 8), everything);
    const auto after = observe(before, {1, small_squared_norm, 8, large_squared_norm}, everything);
    const auto noise = estimate({1, small_squared_norm, 8, large_squared_norm});
    const double weight = (after.weight - before.weight) / 8;
    EXPECT_NEAR(after.squared_gradient - before.squared_gradient, 8 * weight * noise.squared_gradient, 1e-6);
    EXPECT_NEAR(after.trace - before.trace, 8 * weight * noise.trace, 1e-6);
    return weight;
  };
  EXPECT_NEAR(weight_of(10, 90, 20), 1, 1e-12);
  EXPECT_NEAR(weight_of(10, 900, 20), 0.01, 1e-12);
  EXPECT_NEAR(weight_of(10, 90, 100), 0.04, 1e-12);
  EXPECT_NEAR(weight_of(10, 900, 400), 0.0025, 1e-12);
  EXPECT_NEAR(weight_of(9, 900, 400), 1, 1e-12);  // too early to know the usual norms
}

// A negative estimate of |G|^2, common where noise dominates, counts as 0: C = 40/8 is expected.
TEST(NoiseAverage, ANegativeSquaredGradientIsNotExpected) {
  const auto before = observe_times(10, {}, showing({-1, 40}, 8), everything);
  const auto after = observe(before, {1, 40, 8, 100}, everything);
  EXPECT_NEAR((after.weight - before.weight) / 8, 0.25, 1e-12);
}

TEST(NoiseAverage, ALastingChangeIsFollowed) {
  auto average = observe_times(200, {}, showing({1, 8}, 64), {});
  average = observe_times(200, average, showing({1e4, 8e4}, 64), {});
  EXPECT_NEAR(mean_squared_gradient(average), 1e4, 500);
  EXPECT_NEAR(mean_trace(average), 8e4, 4000);
}

// --- Errors and the interval ---

TEST(NoiseScale, NeedsTwoSteps) {
  NoiseAverage average;
  EXPECT_FALSE(noise_scale(average).has_value());
  average = observe(average, showing({1, 10}, 8), {});
  EXPECT_FALSE(noise_scale(average).has_value());
  average = observe(average, showing({1, 10}, 8), {});
  ASSERT_TRUE(noise_scale(average).has_value());
  EXPECT_NEAR(*noise_scale(average)->value, 10, 1e-6);
}

// Computes the distance of S - phi |G|^2 from 0 in standard errors, directly from the observations and their weights.
struct Sample {
  std::vector<GradientNoise> noise;
  std::vector<double> weights;

  double distance(double phi) const {
    double weight = 0;
    double sum = 0;
    double squares_of_weights = 0;
    for (size_t i = 0; i < noise.size(); ++i) {
      weight += weights[i];
      squares_of_weights += weights[i] * weights[i];
      sum += weights[i] * residual(i, phi);
    }
    const double mean = sum / weight;
    double scatter = 0;
    for (size_t i = 0; i < noise.size(); ++i) scatter += std::pow(weights[i] * (residual(i, phi) - mean), 2);
    return mean / std::sqrt(scatter / (weight * weight - squares_of_weights));
  }

  double degrees_of_freedom() const {
    double squares = 0;
    double fourth_powers = 0;
    for (const double weight : weights) {
      squares += weight * weight;
      fourth_powers += std::pow(weight, 4);
    }
    return squares * squares / fourth_powers - 1;
  }

 private:
  double residual(size_t i, double phi) const { return noise[i].trace - phi * noise[i].squared_gradient; }
};

// Draws one step for each of `batches`, with micro-batches of two samples.
std::vector<NormObservation> draw_steps(const QuadraticLoss& loss, const std::vector<int>& batches,
                                        std::mt19937_64& random) {
  std::vector<NormObservation> steps;
  for (const int batch : batches) steps.push_back(loss.draw(batch / 2, 2, random));
  return steps;
}

NoiseAverage average_of(const std::vector<NormObservation>& steps, const NoiseWindow& window) {
  NoiseAverage average;
  for (const NormObservation& step : steps) average = observe(average, step, window);
  return average;
}

Sample sample_of(const std::vector<NormObservation>& steps, const NoiseWindow& window) {
  Sample sample;
  double samples_so_far = 0;
  for (const NormObservation& step : steps) {
    const double samples = std::min(step.large_batch, window.samples / window.least_steps);
    samples_so_far += samples;
    const double reach = std::min(window.samples, std::max(window.largest_share * samples_so_far, 8 * samples));
    for (double& weight : sample.weights) weight *= std::exp(-samples / reach);
    sample.weights.push_back(samples);
    sample.noise.push_back(estimate(step));
  }
  return sample;
}

std::vector<int> changing_batch(int steps_of_8, int steps_of_32) {
  std::vector<int> batches(steps_of_8, 8);
  batches.resize(batches.size() + steps_of_32, 32);
  return batches;
}

// Checks the definition of Fieller's interval: at its ends S - phi |G|^2 is t standard errors from 0.
TEST(NoiseScale, EndsOfTheIntervalAreTheLimitsOfATest) {
  std::mt19937_64 random(3);
  const QuadraticLoss loss(10, 20);
  for (const NoiseWindow& window : {everything, NoiseWindow{512, 16}}) {
    const auto steps = draw_steps(loss, changing_batch(60, 30), random);
    const Sample sample = sample_of(steps, window);
    const double t = student_t_quantile(0.975, sample.degrees_of_freedom());
    const NoiseScale scale = *noise_scale(average_of(steps, window));
    ASSERT_TRUE(scale.value.has_value());
    EXPECT_NEAR(sample.distance(*scale.value), 0, 1e-6);
    EXPECT_NEAR(sample.distance(scale.low), t, 1e-6 * t);
    EXPECT_NEAR(sample.distance(*scale.high), -t, 1e-6 * t);
    // At phi = 0 the distance is S divided by its standard error.
    EXPECT_NEAR(scale.trace.value / scale.trace.standard_error, sample.distance(0), 1e-6 * sample.distance(0));
  }
}

TEST(NoiseScale, WithoutASignificantGradientThereIsOnlyALowerBound) {
  std::mt19937_64 random(4);
  const QuadraticLoss loss(10, 5000);
  int bounds = 0;
  for (int repetition = 0; repetition < 200; ++repetition) {
    const auto steps = draw_steps(loss, std::vector<int>(20, 8), random);
    const Sample sample = sample_of(steps, everything);
    const NoiseScale scale = *noise_scale(average_of(steps, everything));
    const double t = student_t_quantile(0.975, 19);
    const bool significant = scale.squared_gradient.value > t * scale.squared_gradient.standard_error;
    EXPECT_EQ(scale.value.has_value(), significant);
    EXPECT_EQ(scale.high.has_value(), significant);
    EXPECT_GT(scale.low, 0);
    if (significant) continue;
    ++bounds;
    if (scale.squared_gradient.value > 0) {
      EXPECT_NEAR(sample.distance(scale.low), t, 1e-6 * t);
    } else {
      EXPECT_GT(sample.distance(scale.low), t);
    }
    EXPECT_GT(sample.distance(scale.low / 2), t);
  }
  EXPECT_GT(bounds, 150);
}

// A negative estimate of |G|^2, however large, counts as 0: the standard error of |G|^2 bounds phi.
TEST(NoiseScale, ANegativeSquaredGradientRaisesNoBound) {
  const auto low_at = [](double squared_gradient) {
    NoiseAverage average;
    for (int i = 0; i < 64; ++i) {
      const double sign = i % 2 == 0 ? 1 : -1;
      average = observe(average, showing({squared_gradient + sign, i / 2 % 2 == 0 ? 101.0 : 99.0}, 8), everything);
    }
    return noise_scale(average)->low;
  };
  const double error = student_t_quantile(0.975, 63) / std::sqrt(63);
  for (const double squared_gradient : {0.0, -0.1, -0.2, -0.9999 * error, -1.0001 * error, -0.5}) {
    EXPECT_NEAR(low_at(squared_gradient), 100 / error, 0.01 * 100 / error) << squared_gradient;
  }
  EXPECT_LT(low_at(0.1), 100 / error);
}

TEST(NoiseScale, IsNeverNegativeOrNotANumber) {
  // Samples alternate around means of every sign.
  for (const double squared_gradient : {-5.0, -0.1, 0.0, 0.1, 5.0}) {
    for (const double trace : {-50.0, -1.0, 0.0, 0.1, 1.0, 50.0}) {
      for (const double scatter : {0.0, 1.0}) {
        SCOPED_TRACE(testing::Message() << squared_gradient << ", " << trace << ", " << scatter);
        NoiseAverage average;
        for (int i = 0; i < 30; ++i) {
          const double sign = i % 2 == 0 ? scatter : -scatter;
          average = observe(average, showing({squared_gradient + sign, trace + (i % 3 - 1) * scatter}, 8), everything);
        }
        const NoiseScale scale = *noise_scale(average);
        EXPECT_GE(scale.low, 0);
        EXPECT_TRUE(std::isfinite(scale.low));
        EXPECT_EQ(scale.value.has_value(), scale.high.has_value());
        if (scale.value) {
          EXPECT_GE(*scale.value, scale.low);
          EXPECT_GE(*scale.high, *scale.value);
        }
      }
    }
  }
}

struct SimulatedRun {
  const char* name;
  std::vector<int> batches;  // batch of every step
  NoiseWindow window;
  double noise_scale;
  double most = 0.97;  // highest coverage that passes
};

const std::vector<SimulatedRun> runs = {
    {"six steps", std::vector<int>(6, 8), everything, 8},
    {"equal weights", std::vector<int>(64, 8), everything, 8},
    // Intervals mostly have no upper end. Where |G|^2 is negative, the lower end cannot exceed the truth.
    {"equal weights, a weak gradient", std::vector<int>(64, 8), everything, 200, 0.99},
    {"exponential weights", std::vector<int>(120, 8), {256, 32}, 8},
    {"equal weights of samples, the batch changes", changing_batch(40, 20), everything, 8},
    {"exponential weights, the batch changes", changing_batch(80, 20), {1024, 32}, 8},
};

class Interval : public testing::TestWithParam<int> {};

TEST_P(Interval, CoversTheTruthNineteenTimesInTwenty) {
  constexpr int repetitions = 2500;  // the standard error of the coverage is 0.44 %
  constexpr uint64_t seed = 11;
  for (const SimulatedRun& run : runs) {
    const QuadraticLoss loss(GetParam(), run.noise_scale);
    std::mt19937_64 random(seed);
    int covered = 0;
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      const NoiseScale scale = *noise_scale(average_of(draw_steps(loss, run.batches, random), run.window));
      covered += scale.low <= run.noise_scale && (!scale.high || run.noise_scale <= *scale.high);
    }
    const double coverage = static_cast<double>(covered) / repetitions;
    EXPECT_GT(coverage, 0.93) << run.name << ", seed " << seed;
    EXPECT_LT(coverage, run.most) << run.name << ", seed " << seed;
    RecordProperty(run.name, std::to_string(coverage));
  }
}

INSTANTIATE_TEST_SUITE_P(EffectiveDimensions, Interval, testing::Values(1, 10, 100));

}  // namespace
}  // namespace copus
