#include "copus/data/blend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace copus {
namespace {

// Returns the largest difference between a source's number of samples and its share, after any number of whole blocks.
double largest_error(const std::vector<double>& weights, int64_t blocks) {
  const Blend blend(weights, 7);
  std::vector<uint64_t> counts(weights.size());
  double largest = 0;
  const auto block_size = static_cast<int64_t>(Blend::block_size);
  for (int64_t block = 0; block < blocks; ++block) {
    for (const SampleAddress& address : blend.locate(static_cast<uint64_t>(block * block_size), block_size)) {
      EXPECT_EQ(address.draw, counts[address.source]++);
    }
    for (size_t source = 0; source < weights.size(); ++source) {
      const double expected = blend.shares()[source] * static_cast<double>((block + 1) * block_size);
      largest = std::max(largest, std::abs(static_cast<double>(counts[source]) - expected));
    }
  }
  return largest;
}

TEST(Blend, EverySourceHasItsShareOfWholeBlocksAndGivesItsSamplesInOrder) {
  EXPECT_LE(largest_error({1, 1}, 20), 0.5);
  EXPECT_LE(largest_error({3, 1}, 20), 0.5);
  EXPECT_LE(largest_error(std::vector<double>(3000, 1), 40), 1);
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<double> weights(1 + random() % 12);
    for (double& weight : weights) weight = std::exp(std::uniform_real_distribution<double>(-6, 0)(random));
    EXPECT_LT(largest_error(weights, 20), 1.7) << trial;
  }
}

// The noise scale compares the first samples of a step with all of them, so they must be a fair sample of the blend.
TEST(Blend, TheFirstSamplesOfStepsAreAFairSample) {
  constexpr int steps = 4000;
  for (const double weight : {1.0, 3.0, 7.0 / 3, 9.0}) {
    for (const uint64_t global_batch : {16, 32, 48, 256, 512}) {
      const Blend blend({1, weight}, 7);
      int found = 0;
      for (uint64_t step = 0; step < steps; ++step)
        found += blend.locate(step * global_batch, 1)[0].source == 0 ? 1 : 0;
      const double share = blend.shares()[0];
      EXPECT_NEAR(static_cast<double>(found) / steps, share, 4 * std::sqrt(share * (1 - share) / steps))
          << weight << ", batch " << global_batch;
    }
  }
}

TEST(Blend, SmallWeightsAreDrawn) {
  const Blend blend({1, 1e-4}, 7);
  uint64_t drawn = 0;
  for (const SampleAddress& address : blend.locate(0, 390 * 256)) drawn += address.source == 1 ? 1 : 0;
  EXPECT_EQ(drawn, 10u);
  EXPECT_LE(largest_error({1e308, 1e308, 1e-300}, 2), 0.5);
}

TEST(Blend, ManySourcesOfAnyWeights) {
  std::mt19937_64 random(2);
  std::vector<double> weights(100'000);
  for (double& weight : weights) weight = std::pow(1e-6, std::uniform_real_distribution<double>(0, 1)(random));
  EXPECT_LE(largest_error(weights, 400), 1);
}

TEST(Blend, APartOfTheOrderIsThatPart) {
  const Blend blend({1, 3, 2}, 7);
  const std::vector<SampleAddress> all = blend.locate(0, 1000);
  for (const auto& [first, count] : {std::pair{0, 1}, {255, 2}, {200, 400}, {256, 256}, {999, 1}, {300, 0}}) {
    EXPECT_EQ(blend.locate(static_cast<uint64_t>(first), count),
              std::vector<SampleAddress>(all.begin() + first, all.begin() + first + count));
  }
}

TEST(Blend, FarOutSamplesAreFoundAtOnce) {
  const uint64_t far = 1'000'000'000'000;
  const SampleAddress address = Blend({1, 3}, 7).locate(far, 1)[0];
  EXPECT_NEAR(static_cast<double>(address.draw), (address.source == 0 ? 0.25 : 0.75) * static_cast<double>(far),
              Blend::block_size);
  EXPECT_EQ(Blend({5}, 7).locate(far, 1)[0], (SampleAddress{0, far}));
}

}  // namespace
}  // namespace copus
