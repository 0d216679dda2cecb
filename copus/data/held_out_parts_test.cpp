#include "copus/data/held_out_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace copus {
namespace {

std::vector<int64_t> samples_of(const std::vector<HeldOutPart>& parts) {
  std::vector<int64_t> samples;
  for (const HeldOutPart& part : parts) samples.push_back(part.samples);
  return samples;
}

TEST(HeldOutParts, EverySourceHasItsShareOfWhatIsRead) {
  EXPECT_EQ(samples_of(held_out_parts({100, 300}, {1, 3}, 40)), (std::vector<int64_t>{10, 30}));
  EXPECT_EQ(samples_of(held_out_parts({100, 300}, {0.5, 0.5}, 40)), (std::vector<int64_t>{20, 20}));
  EXPECT_EQ(samples_of(held_out_parts({7}, {1}, 3)), (std::vector<int64_t>{3}));
  EXPECT_TRUE(held_out_parts({}, {}, 3).empty());
}

TEST(HeldOutParts, WhatASourceLacksIsReadOfTheOthers) {
  const auto parts = held_out_parts({10, 300, 300}, {0.5, 0.25, 0.25}, 40);
  EXPECT_EQ(samples_of(parts), (std::vector<int64_t>{10, 15, 15}));
  EXPECT_DOUBLE_EQ(parts[0].weight, 0.5) << "it counts as training does";
}

TEST(HeldOutParts, ARareSourceIsReadAndCountsLittle) {
  const auto parts = held_out_parts({1000, 1000}, {1, 1e-6}, 128);
  EXPECT_EQ(samples_of(parts), (std::vector<int64_t>{127, 1}));
  EXPECT_NEAR(parts[1].weight, 1e-6, 1e-9);
}

// Averages over all positions of one heavy source in the list: the mean weights of the parts equal the sources' shares.
TEST(HeldOutParts, OfMoreSourcesThanSamplesTheReadOnesStandForTheOthers) {
  std::vector<double> weights(300, 0);
  for (size_t heavy = 0; heavy < 300; ++heavy) {
    std::vector<double> shares(300, 1);
    shares[heavy] = 30;
    for (const HeldOutPart& part : held_out_parts(std::vector<int64_t>(300, 9), shares, 100)) {
      const bool is_heavy = part.source == static_cast<int64_t>(heavy);
      weights[is_heavy ? 0 : 1] += part.weight / 300;
    }
  }
  EXPECT_NEAR(weights[0], 30.0 / 329, 0.01);
  EXPECT_NEAR(weights[1], 299.0 / 329, 0.01);
}

TEST(HeldOutParts, WhateverTheSizesAsManySamplesAreReadAsWereAskedFor) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<int64_t> sizes(1 + random() % 30);
    std::vector<double> shares;
    for (int64_t& size : sizes) {
      size = static_cast<int64_t>(1 + random() % (trial % 2 == 0 ? 5 : 500));
      shares.push_back(std::exp(std::uniform_real_distribution<double>(-14, 0)(random)));
    }
    const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    const auto wanted = static_cast<int64_t>(1 + random() % (all + 3));
    const auto parts = held_out_parts(sizes, shares, wanted);
    const std::vector<int64_t> samples = samples_of(parts);
    EXPECT_EQ(std::accumulate(samples.begin(), samples.end(), int64_t{0}), std::min(wanted, all));
    double weights = 0;
    for (const HeldOutPart& part : parts) {
      EXPECT_LE(part.samples, sizes[static_cast<size_t>(part.source)]);
      weights += part.weight;
    }
    EXPECT_NEAR(weights, 1, 1e-12);
    if (wanted >= std::ssize(sizes)) {
      EXPECT_EQ(parts.size(), sizes.size());
    }
  }
}

}  // namespace
}  // namespace copus
