#include "copus/statistics/branch_calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "copus/statistics/efficiency.h"
#include "copus/statistics/efficiency_belief.h"

namespace copus {
namespace {

constexpr double reference = 8, phi = 30, length = 2048;

// The loss of the reference batch after this many samples.
double loss_after(double samples) { return 1.5 + 3 * std::pow(samples, -0.3); }

// A loss that the ladder's straight lines interpolate exactly.
double straight_loss_after(double samples) { return 4 - 0.3 * std::log(samples); }

// Branches with the efficiency SE of this c, multiplied by the rate's factor r^(2 alpha).
std::vector<BranchOutcome> branches(double c, double alpha, double noise, unsigned seed,
                                    double (*loss)(double) = loss_after) {
  std::mt19937 random(seed);
  std::normal_distribution<double> error(0, noise);
  std::vector<BranchOutcome> outcomes;
  for (int64_t repetition = 0; repetition < 4; ++repetition) {
    for (const double share : {1.0 / 16, 1.0 / 8, 1.0 / 4, 1.0 / 2, 1.0, 2.0, 4.0}) {
      outcomes.push_back({reference, 0.5, share * length, repetition, loss(share * length)});
    }
    for (const double batch : {4.0, 16.0, 32.0, 64.0, 128.0}) {
      const double worth = statistical_efficiency(batch, c * phi, reference) * std::pow(batch / reference, alpha);
      outcomes.push_back({batch, 0.5, length, repetition, loss(length * worth * std::exp(error(random)))});
    }
  }
  return outcomes;
}

TEST(BranchEfficiencies, TheLadderGivesBackItsOwnSamples) {
  std::vector<BranchOutcome> outcomes = branches(2, 0, 0, 1);
  // A loss half-way between two rungs is worth the geometric mean of their samples. Each repetition has its own ladder.
  outcomes.push_back({64, 0, 1000, 2, (loss_after(length) + loss_after(2 * length)) / 2});
  const BranchEfficiencies found = branch_efficiencies(outcomes, reference);
  EXPECT_EQ(found.outside, 0);
  EXPECT_EQ(found.values.size(), 21U);
  EXPECT_NEAR(std::exp(found.values.back().logarithm), std::sqrt(2.0) * length / 1000, 1e-12);
  EXPECT_EQ(found.values.back().repetition, 2);
}

TEST(BranchEfficiencies, ALossBeyondTheLadderBoundsTheEfficiency) {
  std::vector<BranchOutcome> outcomes = branches(2, 0, 0, 1);
  outcomes.push_back({64, 0, length, 0, 10.0});
  outcomes.push_back({64, 0, length, 0, 1.4});
  outcomes.push_back({64, 0, length, 0, std::numeric_limits<double>::quiet_NaN()});
  outcomes.push_back({64, 0, length, 17, 2.0});  // a repetition without a ladder
  const BranchEfficiencies found = branch_efficiencies(outcomes, reference);
  EXPECT_EQ(found.outside, 4);
  EXPECT_EQ(found.values.size(), 20U);
  ASSERT_EQ(found.bounds.size(), 2U);
  EXPECT_NEAR(found.bounds[0].logarithm, std::log(1.0 / 16), 1e-12) << "worse than the lowest rung";
  EXPECT_NEAR(found.bounds[1].logarithm, std::log(4), 1e-12) << "better than the highest rung";
}

// A diverged branch of the reference batch is no rung, and any diverged branch has an unknown efficiency.
TEST(BranchEfficiencies, WhatDivergedIsWorthNothingThatIsKnown) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<BranchOutcome> outcomes = branches(2, 0, 0, 1);
  for (BranchOutcome& outcome : outcomes) {
    const bool is_short_rung = outcome.batch == reference && outcome.samples < length / 4;
    if (outcome.repetition == 1 && (is_short_rung || outcome.batch == 128)) outcome.loss = infinity;
  }
  const BranchEfficiencies found = branch_efficiencies(outcomes, reference);
  EXPECT_EQ(found.outside, 1);
  EXPECT_EQ(found.values.size(), 19U);
  EXPECT_TRUE(found.bounds.empty());
  outcomes.push_back({64, 0, length, 1, 10.0});
  EXPECT_EQ(branch_efficiencies(outcomes, reference).outside, 2);
  EXPECT_TRUE(branch_efficiencies(outcomes, reference).bounds.empty()) << "the shortest rung is missing";
  for (const BranchEfficiency& value : found.values) {
    EXPECT_NEAR(value.logarithm, std::log(statistical_efficiency(value.batch, 2 * phi, reference)), 0.05);
  }
}

TEST(FitCalibration, FindsTheConstantsOfBranchesWithoutNoise) {
  for (const double c : {0.5, 2.0, 4.5}) {
    for (const double alpha : {0.0, 0.5}) {
      const auto fit = fit_calibration(branch_efficiencies(branches(c, alpha, 0, 1), reference), reference,
                                       {.noise_scale = phi}, alpha);
      ASSERT_TRUE(fit) << c << ' ' << alpha;
      // Interpolation of the curved loss by straight lines costs some per cent.
      EXPECT_NEAR(fit->calibration.value / c, 1, 0.06) << c << ' ' << alpha;
      EXPECT_NEAR(fit->free_alpha.value, alpha, 0.05) << c << ' ' << alpha;
      EXPECT_LT(fit->deviation, 0.03) << c << ' ' << alpha;
    }
  }
}

TEST(FitCalibration, IntervalsHoldTheTruthAsOftenAsTheySay) {
  int c_inside = 0, alpha_inside = 0;
  constexpr int repetitions = 200;
  for (unsigned seed = 1; seed <= repetitions; ++seed) {
    const auto fit = fit_calibration(branch_efficiencies(branches(3, 0, 0.05, seed, straight_loss_after), reference),
                                     reference, {.noise_scale = phi}, 0);
    ASSERT_TRUE(fit);
    c_inside += fit->calibration.low <= 3 && 3 <= fit->calibration.high ? 1 : 0;
    alpha_inside += fit->free_alpha.low <= 0 && 0 <= fit->free_alpha.high ? 1 : 0;
  }
  // 190 are expected, with a standard deviation of 3.
  EXPECT_GE(c_inside, 178);
  EXPECT_GE(alpha_inside, 178);
  EXPECT_LT(c_inside, repetitions);
}

// A critical batch of 2 phi, where k / n alone would give 4 phi, means c = 4: 1/2 = 1/4 + 1/4.
TEST(FitCalibration, WhatTheUpdatesBoundIsNotLaidToTheNoiseScale) {
  const BranchPoint point{.noise_scale = phi, .consumed_samples = 25 * 4 * phi, .updates = 25};
  const auto fit = fit_calibration(branch_efficiencies(branches(2, 0, 0, 1), reference), reference, point, 0);
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->calibration.value / 4, 1, 0.12);  // 6 % error of 1 / B_c is 12 % of half of it
}

TEST(FitCalibration, TooFewBranchesAreNoFit) {
  std::vector<BranchOutcome> outcomes = branches(2, 0, 0, 1);
  std::erase_if(outcomes,
                [](const BranchOutcome& o) { return o.batch != reference && (o.repetition > 0 || o.batch > 16); });
  EXPECT_FALSE(fit_calibration(branch_efficiencies(outcomes, reference), reference, {.noise_scale = phi}, 0));
}

TEST(BestRateExponent, IsTheMostEfficientWithThoseThatAreNoWorse) {
  BranchEfficiencies found;
  for (int repetition = 0; repetition < 4; ++repetition) {
    const double wobble = repetition % 2 == 0 ? 0.01 : -0.01;
    for (const double batch : {16.0, 32.0}) {
      found.values.push_back({batch, 0.5, repetition, -0.3});
      found.values.push_back({batch, 0.25, repetition, -0.299 + wobble});
      found.values.push_back({batch, 0, repetition, -0.6 + wobble});
    }
  }
  found.values.push_back({64, 0, 0, 5});  // no other exponent has this batch
  const auto best = best_rate_exponent(found);
  ASSERT_TRUE(best);
  EXPECT_EQ(*best, (Estimate{0.25, 0.25, 0.5}));
}

// One branch in this batch for each efficiency, in repetitions of their own.
BranchEfficiencies efficiencies_of(double batch, const std::vector<double>& all) {
  BranchEfficiencies efficiencies;
  for (const double efficiency : all) {
    efficiencies.values.push_back({batch, 0.5, std::ssize(efficiencies.values), std::log(efficiency)});
  }
  return efficiencies;
}

// The mean and standard deviation of ln B_c by Simpson's rule over a wide range, after one branch of batch 64
// against 8.
std::pair<double, double> by_integration(double efficiency, double expected, double error) {
  constexpr int steps = 20'000;
  double weights = 0, first = 0, second = 0;
  for (int step = 0; step <= steps; ++step) {
    const double x = std::log(expected) + 21.0 * (2.0 * step / steps - 1);
    const double distance = (x - std::log(expected)) / deviation_of_calibration;
    const double residual = (std::log(efficiency) - std::log((std::exp(x) + 8) / (std::exp(x) + 64))) / error;
    const double share = step == 0 || step == steps ? 1 : step % 2 == 1 ? 4 : 2;
    const double weight = share * std::exp(-(distance * distance + residual * residual) / 2);
    weights += weight;
    first += weight * x;
    second += weight * x * x;
  }
  const double mean = first / weights;
  return {mean, std::sqrt(second / weights - mean * mean)};
}

TEST(CriticalBatchOf, IsTheMeanOfThePosterior) {
  for (const double efficiency : {0.1251, 0.2, 0.5, 0.9, 1.2}) {
    for (const double expected : {0.01, 20.0, 1e5}) {
      const auto [mean, deviation] = by_integration(efficiency, expected, branch_error);
      const auto found = critical_batch_of(efficiencies_of(64, {efficiency}), 64, 8, 1, expected, 0);
      ASSERT_TRUE(found);
      // The grid is some seven times as fine as the narrowest posterior.
      EXPECT_NEAR(std::log(found->value), mean, 1e-3) << efficiency << ", " << expected;
      EXPECT_NEAR(found->deviation, deviation, 1e-3) << efficiency << ", " << expected;
    }
  }
}

TEST(CriticalBatchOf, AClearMeasurementOutweighsThePrior) {
  const double truth = 40, batch = 64;
  const double efficiency = (truth + reference) / (truth + batch);
  for (const double expected : {4.0, 400.0}) {
    const auto found = critical_batch_of(efficiencies_of(batch, {efficiency}), batch, reference, 1, expected, 0);
    ASSERT_TRUE(found);
    EXPECT_NEAR(std::log(found->value / truth), 0, 0.3) << expected;
    EXPECT_LT(found->deviation, 0.7);
  }
}

TEST(CriticalBatchOf, RepetitionsNarrowTheIntervalToWhatTheyShare) {
  const auto [one, deviation_of_one] = by_integration(0.4, 40, branch_error);
  const auto [four, deviation_of_four] = by_integration(0.4, 40, branch_error * std::sqrt(0.5 + 0.5 / 4));
  const auto found = critical_batch_of(efficiencies_of(64, {0.4, 0.42, 0.4 * 0.4 / 0.42, 0.4}), 64, 8, 4, 40, 0);
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->deviation, deviation_of_four, 1e-3);
  EXPECT_LT(found->deviation, 0.85 * deviation_of_one);
}

// In branches of 8 and 64, all critical batches far below 8 look alike, and so do all far above 64. Such branches
// exclude what is expected only if it is on the other side.
TEST(CriticalBatchOf, BranchesThatOnlyBoundItCountAgainstTheOtherSideAlone) {
  const auto found = [](double efficiency, double expected) {
    BranchEfficiencies efficiencies = efficiencies_of(64, {});
    efficiencies.bounds.push_back({64, 0.5, 0, std::log(efficiency)});
    return *critical_batch_of(efficiencies, 64, 8, 1, expected, 0);
  };
  constexpr double samples_count_for_nothing = 1.0 / 8, nothing_is_lost = 1.5;
  EXPECT_LT(found(samples_count_for_nothing, 1000).value, 4);
  EXPECT_NEAR(std::log(found(samples_count_for_nothing, 0.001).value / 0.001), 0, 0.05);
  EXPECT_GT(found(nothing_is_lost, 0.1).value, 100);
  EXPECT_NEAR(std::log(found(nothing_is_lost, 1e6).value / 1e6), 0, 0.05);
}

// With a rate of sqrt(8) and alpha = 0.25, a branch advances 8^(1/4) times as far.
TEST(CriticalBatchOf, TheGainFromTheRateThatAlphaCreditsIsLeftOut) {
  EXPECT_NEAR(critical_batch_of(efficiencies_of(64, {0.4 * std::pow(8, 0.25)}), 64, 8, 1, 20, 0.25)->value,
              critical_batch_of(efficiencies_of(64, {0.4}), 64, 8, 1, 20, 0)->value, 1e-9);
}

TEST(CriticalBatchOf, WithoutABranchOfEachRepetitionThereIsNone) {
  EXPECT_FALSE(critical_batch_of(efficiencies_of(32, {0.5}), 64, 8, 1, 20, 0)) << "of another batch";
  EXPECT_FALSE(critical_batch_of(efficiencies_of(64, {0.5}), 64, 8, 2, 20, 0)) << "the other one diverged";
}

TEST(LogDeviation, AnEndOfTheRangeIsNoEndOfTheInterval) {
  EXPECT_NEAR(*log_deviation({4, 2, 8}), std::log(2) / 1.96, 1e-12);
  EXPECT_NEAR(*log_deviation({200, 40, largest_calibration}), std::log(5) / 1.96, 1e-12);
  EXPECT_NEAR(*log_deviation({0.03, smallest_calibration, 0.06}), std::log(2) / 1.96, 1e-12);
  EXPECT_FALSE(log_deviation({largest_calibration, 40, largest_calibration}));
  EXPECT_FALSE(log_deviation({1, smallest_calibration, largest_calibration}));
}

}  // namespace
}  // namespace copus
