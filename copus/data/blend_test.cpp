#include "copus/data/blend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace copus {
namespace {

std::vector<double> random_weights(std::mt19937_64& random) {
  std::vector<double> weights(1 + random() % 6);
  for (double& weight : weights) weight = std::exp(std::uniform_real_distribution<double>(-2, 2)(random));
  return weights;
}

TEST(Blend, HoldsTheProportionsInEveryBlock) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 10; ++trial) {
    const auto weights = random_weights(random);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const Blend blend(weights, random());
    for (uint64_t block = 0; block < 3; ++block) {
      std::vector<int64_t> counts(weights.size());
      for (const auto& address : blend.locate(block * Blend::block_size, Blend::block_size))
        ++counts[static_cast<std::size_t>(address.source)];
      for (std::size_t source = 0; source < weights.size(); ++source)
        EXPECT_LT(std::abs(static_cast<double>(counts[source]) / Blend::block_size - weights[source] / sum),
                  1.0 / Blend::block_size);
    }
  }
}

TEST(Blend, EverySourceGivesItsSamplesOneAfterTheOther) {
  const Blend blend({3, 1, 0.5}, 9);
  std::vector<uint64_t> next(3);
  for (const auto& address : blend.locate(0, 3 * Blend::block_size + 17))
    EXPECT_EQ(address.draw, next[static_cast<std::size_t>(address.source)]++);
}

TEST(Blend, AnyPartOfTheOrderIsThatPart) {
  std::mt19937_64 random(2);
  const Blend blend({2, 1, 1}, 3);
  const auto all = blend.locate(0, 10000);
  for (int trial = 0; trial < 20; ++trial) {
    const uint64_t first = random() % 9000;
    const auto count = static_cast<int64_t>(random() % 1000);
    const auto part = blend.locate(first, count);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    EXPECT_EQ(part, std::vector<SampleAddress>(begin, begin + count));
  }
}

TEST(Blend, BlocksAreShuffledEachInItsOwnWay) {
  const Blend blend({1, 1}, 3);
  const auto sources_of = [&](const Blend& of, uint64_t first) {
    std::vector<int64_t> sources;
    for (const auto& address : of.locate(first, 200)) sources.push_back(address.source);
    return sources;
  };
  EXPECT_NE(sources_of(blend, 0), sources_of(blend, Blend::block_size));
  EXPECT_NE(sources_of(blend, 0), sources_of(Blend({1, 1}, 4), 0));
  EXPECT_EQ(sources_of(blend, 0), sources_of(Blend({1, 1}, 3), 0));
}

TEST(Blend, FarOutSamplesAreFoundAtOnce) {
  const uint64_t far = 1'000'000'000'000;
  const Blend blend({1, 3}, 3);
  const auto addresses = blend.locate(far, 3);
  for (const auto& address : addresses)
    EXPECT_NEAR(static_cast<double>(address.draw), (address.source == 0 ? 0.25 : 0.75) * static_cast<double>(far),
                Blend::block_size);
  EXPECT_EQ(Blend({5}, 3).locate(far, 1), (std::vector<SampleAddress>{{0, far}}));
}

TEST(Blend, AShareTooSmallForABlockGetsNothing) {
  EXPECT_EQ(Blend({1, 1e-6}, 0).counts(), (std::vector<int64_t>{Blend::block_size, 0}));
  EXPECT_EQ(Blend({1e308, 1e308}, 0).counts(), (std::vector<int64_t>(2, Blend::block_size / 2)));
}

}  // namespace
}  // namespace copus
