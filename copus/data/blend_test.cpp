#include "copus/data/blend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace copus {
namespace {

// The largest distance, over all beginnings of the order, of a source's samples from its share of them.
double largest_error(const std::vector<double>& weights, uint64_t samples) {
  const Blend blend(weights);
  std::vector<uint64_t> counts(weights.size());
  double largest = 0;
  const auto look = [&](int64_t source, uint64_t length) {
    const double expected = blend.shares()[source] * static_cast<double>(length);
    largest = std::max(largest, std::abs(static_cast<double>(counts[source]) - expected));
  };
  for (uint64_t sample = 0; sample < samples; ++sample) {
    const SampleAddress address = blend.locate(sample);
    EXPECT_EQ(address.draw, counts[address.source]);
    look(address.source, sample);
    ++counts[address.source];
    look(address.source, sample + 1);
  }
  for (size_t source = 0; source < weights.size(); ++source) look(static_cast<int64_t>(source), samples);
  return largest;
}

TEST(Blend, EverySourceHasItsShareOfEveryBeginningAndGivesItsSamplesInOrder) {
  EXPECT_LE(largest_error({1, 1}, 1000), 0.5);
  EXPECT_LE(largest_error({3, 1}, 1000), 0.5);
  EXPECT_LE(largest_error(std::vector<double>(3000, 1), 30000), 1);
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<double> weights(1 + random() % 12);
    for (double& weight : weights) weight = std::exp(std::uniform_real_distribution<double>(-6, 0)(random));
    EXPECT_LT(largest_error(weights, 5000), 1.7) << trial;
  }
}

TEST(Blend, SmallWeightsAreDrawn) {
  const Blend blend({1, 1e-4});
  uint64_t drawn = 0;
  for (uint64_t sample = 0; sample < 100'000; ++sample) drawn += blend.locate(sample).source == 1 ? 1 : 0;
  EXPECT_EQ(drawn, 10u);
  EXPECT_LE(largest_error({1e308, 1e308, 1e-300}, 100), 0.5);
}

TEST(Blend, ManySourcesOfAnyWeights) {
  std::mt19937_64 random(2);
  std::vector<double> weights(20'000);
  for (double& weight : weights) weight = std::pow(1e-6, std::uniform_real_distribution<double>(0, 1)(random));
  EXPECT_LT(largest_error(weights, 200'000), 1.7);
}

TEST(Blend, FarOutSamplesAreFoundAtOnce) {
  const uint64_t far = 1'000'000'000'000;
  const SampleAddress address = Blend({1, 3}).locate(far);
  EXPECT_NEAR(static_cast<double>(address.draw), (address.source == 0 ? 0.25 : 0.75) * static_cast<double>(far), 1);
  EXPECT_EQ(Blend({5}).locate(far), (SampleAddress{0, far}));
}

}  // namespace
}  // namespace copus
