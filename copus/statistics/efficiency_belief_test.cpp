#include "copus/statistics/efficiency_belief.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "copus/base/error.h"

namespace copus {
namespace {

// The constants of the prior and the scatter, as docs/decisions/statistics.md states them.
constexpr double n_0 = 1e9, phi_0 = 3e5, law_scatter = 0.2;
struct Normal {
  double mean, deviation;
};
struct Component {
  Normal level, by_tokens, by_noise, log_power{0, 0.2}, rate_slope{0, 0.3};
};
const std::array<Component, 2> components = {
    {{{std::log(1.0e6), 1.0}, {0.5, 0.15}, {0, 0.15}}, {{std::log(1.42 * phi_0), 2.1}, {0, 0.15}, {1, 0.15}}}};

double square(double x) { return x * x; }

struct MeanAndSpread {
  double mean = 0, deviation = 0;
};

// Moments of weighted values. The weights need not sum to 1.
MeanAndSpread moments_of(const std::vector<double>& values, const std::vector<double>& weights) {
  double sum = 0, mean = 0, variance = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += weights[i];
    mean += weights[i] * values[i];
  }
  mean /= sum;
  for (size_t i = 0; i < values.size(); ++i) variance += weights[i] * square(values[i] - mean) / sum;
  return {mean, std::sqrt(variance)};
}

template <class Value>
MeanAndSpread moments_of(const EfficiencyBelief& belief, const Value& value) {
  std::vector<double> values;
  for (const EfficiencyLaw& law : belief.laws) values.push_back(value(law));
  return moments_of(values, std::vector<double>(values.size(), 1));
}

MeanAndSpread log_critical_batch(const EfficiencyBelief& belief, const TrainingMoment& moment) {
  return moments_of(belief, [&](const EfficiencyLaw& law) { return std::log(law.critical_batch(moment)); });
}

// Fails if moments differ by more than four standard errors of 512 draws resampled from some thousand.
void expect_alike(const MeanAndSpread& found, const MeanAndSpread& exact) {
  const double error = exact.deviation / std::sqrt(512.0);
  EXPECT_NEAR(found.mean, exact.mean, 4 * error);
  EXPECT_NEAR(found.deviation, exact.deviation, 4 * error);
}

// The moments of a mixture of two normal distributions.
MeanAndSpread mixture(double first_share, const MeanAndSpread& first, const MeanAndSpread& second) {
  const double mean = first_share * first.mean + (1 - first_share) * second.mean;
  return {mean, std::sqrt(first_share * (square(first.deviation) + square(first.mean - mean)) +
                          (1 - first_share) * (square(second.deviation) + square(second.mean - mean)))};
}

TEST(EfficiencyLaw, IsTheHyperbolaWithAPowerAndTheRatesSlope) {
  const EfficiencyLaw hyperbola{.level = std::log(2 * phi_0), .by_noise = 1};
  EXPECT_NEAR(hyperbola.critical_batch({1e6, 700}), 1400, 1e-9);
  EXPECT_NEAR(std::exp(hyperbola.log_worth(700, 1400, 3)), 1 / 1.5, 1e-15);
  const EfficiencyLaw law{.level = std::log(1000), .by_tokens = 0.5, .power = 0.5, .rate_slope = -1};
  EXPECT_NEAR(law.critical_batch({4 * n_0, 700}), 2000, 1e-9);
  EXPECT_NEAR(std::exp(law.log_worth(6000, 2000, 2)), 0.25, 1e-15);
}

// The four laws by tokens, with their published exponents and critical batches after 1e9 tokens.
TEST(EfficiencyBelief, ThePriorByTokensIsTheMeanOfPublishedLaws) {
  const double kaplan_loss = std::pow(5.4e13 / n_0, 0.095);  // arXiv 2001.08361, equations 1.2 and 1.4
  const double olmo_exponent = std::log(2) / std::log(503.0 / 168);
  const std::vector<double> exponents = {0.095 / 0.21, 0.47, 0.462, olmo_exponent};
  const std::vector<double> batches = {
      2e8 / std::pow(kaplan_loss, 1 / 0.21), 5 * 22.9 * std::pow(1e3, 0.47) * 512,  // 20 % more steps: a fifth of B_c
      0.0471 * std::pow(n_0, 0.462) * 2048, 4096.0 * 4096 * std::pow(n_0 / 503e9, olmo_exponent)};
  double exponent = 0, log_batch = 0;
  for (size_t i = 0; i < 4; ++i) {
    exponent += exponents[i] / 4;
    log_batch += std::log(batches[i]) / 4;
  }
  EXPECT_NEAR(exponent, components[0].by_tokens.mean, 0.01);
  EXPECT_NEAR(log_batch, components[0].level.mean, 0.05);
}

// Critical batch divided by noise scale for eight tasks, averaged over training: McCandlish et al. 2018, table 1.
TEST(EfficiencyBelief, ThePriorByNoiseIsThatOfMcCandlishsTasks) {
  const std::vector<double> ratios = {200.0 / 900, 500.0 / 4000, 900.0 / 2000, 15.0 / 30,
                                      40.0 / 2,    200.0 / 10,   100.0 / 150,  3000.0 / 300};
  double mean = 0, variance = 0;
  for (const double ratio : ratios) mean += std::log(ratio) / 8;
  for (const double ratio : ratios) variance += square(std::log(ratio) - mean) / 7;
  EXPECT_NEAR(mean + std::log(phi_0), components[1].level.mean, 0.01);
  EXPECT_NEAR(std::sqrt(variance), components[1].level.deviation, 0.05);
}

TEST(EfficiencyBelief, LawsByTokensAreThePriorsHalfWhateverTheNoiseScale) {
  const EfficiencyBelief by_tokens{.laws = laws_by_tokens({}, 1)};
  ASSERT_EQ(by_tokens.laws.size(), 512u);
  for (const TrainingMoment& moment : {TrainingMoment{n_0, phi_0}, {1e6, 1}, {3e11, 1e9}}) {
    const double tokens = std::log(moment.tokens / n_0);
    const Component& prior = components[0];
    expect_alike(log_critical_batch(by_tokens, moment),
                 {prior.level.mean + prior.by_tokens.mean * tokens,
                  std::sqrt(square(prior.level.deviation) + square(prior.by_tokens.deviation * tokens))});
  }
  expect_alike(moments_of(by_tokens, [](const EfficiencyLaw& law) { return std::log(law.power); }), {0, 0.2});
}

// Precise critical batches that grow with the cube root of the tokens leave only the scatter around them.
TEST(EfficiencyBelief, LawsByTokensFollowMeasuredCriticalBatches) {
  std::vector<CriticalBatchEvidence> measured;
  for (const double tokens : {1e8, 4e8, 1.6e9, 6.4e9, 2.56e10}) {
    measured.push_back({{tokens, 1e3}, 5e5 * std::cbrt(tokens / n_0), 0.01});
  }
  const EfficiencyBelief belief{.laws = laws_by_tokens(measured, 1)};
  const MeanAndSpread exponent = moments_of(belief, [](const EfficiencyLaw& law) { return law.by_tokens; });
  EXPECT_NEAR(exponent.mean, 1.0 / 3, 0.05);
  EXPECT_LT(exponent.deviation, 0.06);
  EXPECT_NEAR(log_critical_batch(belief, {n_0, 1e9}).mean, std::log(5e5), 0.05);
}

TEST(EfficiencyBelief, WithoutEvidenceIsThePrior) {
  const EfficiencyBelief belief = believe({}, 1);
  ASSERT_EQ(belief.laws.size(), 512u);
  EXPECT_GT(belief.effective_draws, 1000);
  for (const TrainingMoment& moment : {TrainingMoment{n_0, phi_0}, {1e6, 3e3}, {3e11, 2e7}}) {
    const double tokens = std::log(moment.tokens / n_0), noise = std::log(moment.noise_scale / phi_0);
    const auto of = [&](const Component& c) {
      return MeanAndSpread{c.level.mean + c.by_tokens.mean * tokens + c.by_noise.mean * noise,
                           std::sqrt(square(c.level.deviation) + square(c.by_tokens.deviation * tokens) +
                                     square(c.by_noise.deviation * noise) + square(law_scatter))};
    };
    SCOPED_TRACE(testing::Message() << moment.tokens);
    expect_alike(log_critical_batch(belief, moment), mixture(0.5, of(components[0]), of(components[1])));
  }
  expect_alike(moments_of(belief, [](const EfficiencyLaw& law) { return std::log(law.power); }), {0, 0.2});
  expect_alike(moments_of(belief, [](const EfficiencyLaw& law) { return law.rate_slope; }), {0, 0.3});
}

// The critical batch of an earlier run is linear in the law's parameters. So each half of the prior has a normal
// posterior, and its share follows from the density of the measured critical batch.
TEST(EfficiencyBelief, AnEarlierRunsCriticalBatchGivesTheClosedForm) {
  const TrainingMoment measured{3e7, 2e4}, later{3e8, 4e4};
  const double found = std::log(9e4), variance = square(0.3) + square(law_scatter);
  struct Posterior {
    double density;
    MeanAndSpread later, by_noise;
  };
  const auto posterior_of = [&](const Component& c) {
    // The covariance of (ln B_c measured, ln B_c later, w) under the prior.
    const auto logs = [](const TrainingMoment& m) {
      return std::pair(std::log(m.tokens / n_0), std::log(m.noise_scale / phi_0));
    };
    const auto [n, phi] = logs(measured);
    const auto [later_n, later_phi] = logs(later);
    const double a = square(c.level.deviation), q = square(c.by_tokens.deviation), w = square(c.by_noise.deviation);
    const double mean = c.level.mean + c.by_tokens.mean * n + c.by_noise.mean * phi;
    const double later_mean = c.level.mean + c.by_tokens.mean * later_n + c.by_noise.mean * later_phi;
    const double own = a + q * n * n + w * phi * phi + variance;
    const double with_later = a + q * n * later_n + w * phi * later_phi, with_w = w * phi;
    const double later_variance = a + q * later_n * later_n + w * later_phi * later_phi;
    return Posterior{std::exp(-square(found - mean) / own / 2) / std::sqrt(own),
                     {later_mean + with_later / own * (found - mean),
                      std::sqrt(later_variance - square(with_later) / own + square(law_scatter))},
                     {c.by_noise.mean + with_w / own * (found - mean), std::sqrt(w - square(with_w) / own)}};
  };
  const Posterior first = posterior_of(components[0]), second = posterior_of(components[1]);
  const double share = first.density / (first.density + second.density);
  const EfficiencyBelief belief = believe({.branch_points = {}, .critical_batches = {{measured, 9e4, 0.3}}}, 2);
  EXPECT_GT(belief.effective_draws, 1000);
  expect_alike(log_critical_batch(belief, later), mixture(share, first.later, second.later));
  expect_alike(moments_of(belief, [](const EfficiencyLaw& law) { return law.by_noise; }),
               mixture(share, first.by_noise, second.by_noise));
}

const BranchPointEvidence two_branches{
    .moment = {5e7, 4e4},
    .reference_batch = 3e4,
    .branches = {{.batch = 1.2e5, .rate_factor = 2, .log_efficiency = -0.35, .deviation = 0.1},
                 {.batch = 1.2e5, .rate_factor = 1, .log_efficiency = -0.5, .deviation = 0.1},
                 {.batch = 4.8e5, .rate_factor = 2, .log_efficiency = -1.3, .deviation = 0.15}}};

// The reference: a million laws drawn from the prior and weighted by their likelihood. The scatter of ln B_c at the
// branch point is drawn too.
TEST(EfficiencyBelief, BranchesGiveWhatWeighedDrawsOfThePriorGive) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  const TrainingMoment later{2e8, 7e4};
  std::vector<double> weights, at_later, slopes, powers;
  for (int i = 0; i < 1'000'000; ++i) {
    const Component& c = components[static_cast<size_t>(i % 2)];
    const auto draw = [&](const Normal& of) { return of.mean + of.deviation * normal(random); };
    EfficiencyLaw law{draw(c.level), draw(c.by_tokens), draw(c.by_noise), std::exp(draw(c.log_power)),
                      draw(c.rate_slope)};
    const double critical = law.critical_batch(two_branches.moment) * std::exp(law_scatter * normal(random));
    double misfit = 0;
    for (const MeasuredBranch& branch : two_branches.branches) {
      const double worth =
          -law.power * std::log((critical + branch.batch) / (critical + two_branches.reference_batch)) +
          law.rate_slope * std::log(branch.rate_factor);
      misfit += square((branch.log_efficiency - worth) / branch.deviation);
    }
    weights.push_back(std::exp(-misfit / 2));
    at_later.push_back(std::log(law.critical_batch(later)) + law_scatter * normal(random));
    slopes.push_back(law.rate_slope);
    powers.push_back(std::log(law.power));
  }
  const EfficiencyBelief belief = believe({.branch_points = {two_branches}, .critical_batches = {}}, 3);
  EXPECT_GT(belief.effective_draws, 500);
  expect_alike(log_critical_batch(belief, later), moments_of(at_later, weights));
  expect_alike(moments_of(belief, [](const EfficiencyLaw& law) { return law.rate_slope; }),
               moments_of(slopes, weights));
  expect_alike(moments_of(belief, [](const EfficiencyLaw& law) { return std::log(law.power); }),
               moments_of(powers, weights));
}

// Branches from several moments, as measured under a law with scatter.
EfficiencyEvidence evidence_of(const EfficiencyLaw& law, std::mt19937_64& random, int points, double deviation) {
  std::normal_distribution<double> normal;
  EfficiencyEvidence evidence;
  for (int i = 0; i < points; ++i) {
    // Tokens and noise scale grow by different factors; otherwise the branches could not distinguish the laws.
    BranchPointEvidence point{
        .moment = {1e7 * std::pow(4, i), 2e4 * (i % 2 == 0 ? 1.0 : 5.0)}, .reference_batch = 3e4, .branches = {}};
    const double critical = law.critical_batch(point.moment) * std::exp(law_scatter * normal(random));
    const double at_reference = law.log_worth(point.reference_batch, critical, 1);
    for (const double factor : {0.5, 4.0, 16.0}) {
      const double batch = factor * point.reference_batch;
      for (const double rate : {1.0, std::sqrt(factor)}) {
        const double worth = law.log_worth(batch, critical, rate) - at_reference;
        point.branches.push_back({batch, rate, worth + deviation * normal(random), deviation});
      }
    }
    evidence.branch_points.push_back(point);
  }
  return evidence;
}

TEST(EfficiencyBelief, BranchesTellWhetherNoiseOrTokensRule) {
  std::mt19937_64 random(11);
  const EfficiencyLaw by_tokens{.level = std::log(1.5e6), .by_tokens = 0.5},
      by_noise{.level = std::log(2 * phi_0), .by_noise = 1};
  const auto weight_of_noise = [&](const EfficiencyLaw& law) {
    return moments_of(believe(evidence_of(law, random, 6, 0.03), 5), [](const EfficiencyLaw& l) { return l.by_noise; })
        .mean;
  };
  EXPECT_LT(weight_of_noise(by_tokens), 0.2);
  EXPECT_GT(weight_of_noise(by_noise), 0.8);
}

// Simulation-based calibration (Talts et al. 2018, arXiv 1804.06788): if truths are drawn from the prior, the rank of
// each truth among the draws of its posterior is uniform.
TEST(EfficiencyBelief, IsRightAsOftenAsItSays) {
  std::mt19937_64 random(13);
  std::normal_distribution<double> normal;
  constexpr int truths = 120;
  const TrainingMoment later{4e8, 1e5};
  int below_half = 0, within_80_percent = 0, slopes_within_80_percent = 0;
  for (int i = 0; i < truths; ++i) {
    const Component& c = components[static_cast<size_t>(i % 2)];
    const auto draw = [&](const Normal& of) { return of.mean + of.deviation * normal(random); };
    const EfficiencyLaw law{draw(c.level), draw(c.by_tokens), draw(c.by_noise), std::exp(draw(c.log_power)),
                            draw(c.rate_slope)};
    const EfficiencyBelief belief = believe(evidence_of(law, random, 2, 0.05), static_cast<uint64_t>(i));
    const double truth = law.critical_batch(later) * std::exp(law_scatter * normal(random));
    const auto share_below = [&](const auto& value, double limit) {
      return static_cast<double>(std::count_if(belief.laws.begin(), belief.laws.end(),
                                               [&](const EfficiencyLaw& l) { return value(l) < limit; })) /
             static_cast<double>(belief.laws.size());
    };
    const double place = share_below([&](const EfficiencyLaw& l) { return l.critical_batch(later); }, truth);
    const double slope_place = share_below([](const EfficiencyLaw& l) { return l.rate_slope; }, law.rate_slope);
    below_half += place < 0.5;
    within_80_percent += place > 0.1 && place < 0.9;
    slopes_within_80_percent += slope_place > 0.1 && slope_place < 0.9;
  }
  // Three standard deviations of a binomial count.
  EXPECT_NEAR(below_half, 0.5 * truths, 3 * std::sqrt(0.25 * truths));
  EXPECT_NEAR(within_80_percent, 0.8 * truths, 3 * std::sqrt(0.16 * truths));
  EXPECT_NEAR(slopes_within_80_percent, 0.8 * truths, 3 * std::sqrt(0.16 * truths));
}

TEST(EfficiencyBelief, ManyPreciseBranchesLeaveEnoughDraws) {
  std::mt19937_64 random(17);
  const EfficiencyLaw law{.level = std::log(5e6), .by_tokens = 0.8, .power = 0.7, .rate_slope = -0.6};
  const EfficiencyBelief belief = believe(evidence_of(law, random, 8, 0.01), 19);
  EXPECT_GT(belief.effective_draws, 500);
  const MeanAndSpread power = moments_of(belief, [](const EfficiencyLaw& l) { return l.power; });
  const MeanAndSpread slope = moments_of(belief, [](const EfficiencyLaw& l) { return l.rate_slope; });
  EXPECT_NEAR(power.mean, 0.7, 0.1);
  EXPECT_LT(power.deviation, 0.06);
  EXPECT_NEAR(slope.mean, -0.6, 0.02);
}

// Any number of branches of one moment says no more about the law than the scatter there allows.
TEST(EfficiencyBelief, OneMomentNeverTellsMoreThanTheScatterAllows) {
  std::mt19937_64 random(23);
  EfficiencyEvidence evidence = evidence_of({.level = std::log(1e6), .by_tokens = 0.5}, random, 1, 0.01);
  const std::vector<MeasuredBranch> once = evidence.branch_points.front().branches;
  for (int i = 0; i < 20; ++i) {
    evidence.branch_points.front().branches.insert(evidence.branch_points.front().branches.end(), once.begin(),
                                                   once.end());
  }
  // At the same moment: the law's scatter there and the scatter of the predicted moment.
  const EfficiencyBelief belief = believe(evidence, 29);
  EXPECT_GT(log_critical_batch(belief, evidence.branch_points.front().moment).deviation, 1.2 * law_scatter);
  EXPECT_GT(belief.effective_draws, 1000);
}

TEST(EfficiencyBelief, TheSameEvidenceAndSeedGiveTheSameBits) {
  const EfficiencyEvidence evidence{.branch_points = {two_branches}, .critical_batches = {{{3e7, 2e4}, 9e4, 0.3}}};
  const EfficiencyBelief first = believe(evidence, 31), again = believe(evidence, 31), other = believe(evidence, 32);
  EXPECT_EQ(first.effective_draws, again.effective_draws);
  ASSERT_EQ(first.laws.size(), again.laws.size());
  int same_as_other = 0;
  for (size_t i = 0; i < first.laws.size(); ++i) {
    const EfficiencyLaw &a = first.laws[i], &b = again.laws[i];
    EXPECT_TRUE(a.level == b.level && a.by_tokens == b.by_tokens && a.by_noise == b.by_noise && a.power == b.power &&
                a.rate_slope == b.rate_slope);
    same_as_other += a.level == other.laws[i].level;
  }
  EXPECT_EQ(same_as_other, 0);
}

// The expected law is the mean of the draws at every moment, those of the evidence and later ones.
TEST(EfficiencyBelief, TheExpectedLawIsTheMeanOfTheDraws) {
  const std::vector<std::vector<CriticalBatchEvidence>> cases = {
      {},
      {{{3e7, 2e4}, 9e4, 0.3}},
      {{{1e8, 4e4}, 9e4, 0.3}, {{4e8, 5e4}, 2e5, 0.3}, {{1.6e9, 3e5}, 4.5e5, 0.3}},
      {{{1e8, 4e4}, 8e4, 0.1}, {{4e8, 2e5}, 4e5, 0.1}, {{1.6e9, 5e4}, 1e5, 0.1}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const EfficiencyLaw law = expected_law(cases[i]);
    const EfficiencyBelief belief = believe({.branch_points = {}, .critical_batches = cases[i]}, i);
    for (const TrainingMoment& moment : {TrainingMoment{n_0, phi_0}, {1e8, 4e4}, {1e10, 1e6}}) {
      const MeanAndSpread drawn = log_critical_batch(belief, moment);
      // Five standard errors of the mean of 512 draws, which effective_draws may make a little wider.
      EXPECT_NEAR(std::log(law.critical_batch(moment)), drawn.mean, 5 * drawn.deviation / std::sqrt(512))
          << "case " << i << " at " << moment.tokens << " tokens";
    }
    EXPECT_EQ(law.power, 1);
    EXPECT_EQ(law.rate_slope, 0);
  }
}

// At three moments the critical batch grew with the square root of the tokens, and the noise scale differently. At
// three others it followed the noise scale.
TEST(EfficiencyBelief, TheExpectedLawLearnsWhichHalfHolds) {
  const auto at = [](double tokens, double noise, double critical) {
    return CriticalBatchEvidence{{tokens, noise}, critical, 0.05};
  };
  const EfficiencyLaw by_tokens = expected_law({at(1e8, 4e5, 2e5), at(4e8, 5e4, 4e5), at(1.6e9, 3e5, 8e5)});
  EXPECT_NEAR(by_tokens.by_tokens, 0.5, 0.1);
  EXPECT_NEAR(by_tokens.by_noise, 0, 0.1);
  const EfficiencyLaw by_noise = expected_law({at(1e8, 4e5, 8e5), at(4e8, 5e4, 1e5), at(1.6e9, 3e5, 6e5)});
  EXPECT_NEAR(by_noise.by_tokens, 0, 0.1);
  EXPECT_NEAR(by_noise.by_noise, 1, 0.1);
  const EfficiencyLaw constant = expected_law({at(1e8, 1e4, 8e4), at(4e8, 1e5, 8e4), at(1.6e9, 1e6, 8e4)});
  EXPECT_EQ(constant.by_noise, 0) << "never grows as the noise scale falls";
  EXPECT_NEAR(std::log(constant.critical_batch({4e8, 1e5}) / 8e4), 0, 0.2);
}

TEST(EfficiencyBelief, WhatIsNotPositiveAndFiniteIsRefused) {
  const auto refused = [](BranchPointEvidence point) {
    EXPECT_THROW(believe({.branch_points = {point}, .critical_batches = {}}, 1), InternalError);
  };
  BranchPointEvidence point = two_branches;
  point.moment.tokens = 0;
  refused(point);
  point = two_branches;
  point.moment.noise_scale = 0;
  refused(point);
  point = two_branches;
  point.reference_batch = 0;
  refused(point);
  point = two_branches;
  point.branches.front().deviation = 0;
  refused(point);
  point = two_branches;
  point.moment.noise_scale = std::numeric_limits<double>::infinity();
  refused(point);
  point = two_branches;
  point.branches.front().log_efficiency = std::numeric_limits<double>::quiet_NaN();
  refused(point);
  EXPECT_THROW(believe({.branch_points = {}, .critical_batches = {{{1e6, 10}, 0, 0.1}}}, 1), InternalError);
}

}  // namespace
}  // namespace copus
