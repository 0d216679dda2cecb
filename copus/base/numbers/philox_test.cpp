#include "copus/base/numbers/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace copus {
namespace {

using Block = std::array<uint32_t, 4>;

// The known answers that Random123 publishes for philox4x32 with 10 rounds (its file kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ULL, ~0ULL, ~0ULL), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822ULL, 0x0370734413198a2eULL, 0x85a308d3243f6a88ULL),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, StreamKeysDiffer) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (int layer = 0; layer < 100; ++layer) keys.insert(stream_key(seed, "model.layers." + std::to_string(layer)));
  }
  keys.insert(stream_key(0, ""));
  EXPECT_EQ(keys.size(), 10001u);
}

// If one of these values changes, every newly initialised model changes.
TEST(Philox, ValuesArePinned) {
  EXPECT_EQ(stream_key(0, ""), 0xaebe53f85cdc3c4cULL);
  EXPECT_EQ(stream_key(1234, "model.embed_tokens.weight"), 0x447ffedb79237a60ULL);
  const uint64_t key = stream_key(1234, "model.embed_tokens.weight");
  EXPECT_EQ(standard_normal(key, 0), -1.52089632f);
  EXPECT_EQ(standard_normal(key, 1), 1.20006359f);
  EXPECT_EQ(standard_normal(key, 6), -0.718330741f);
  EXPECT_EQ(standard_normal(key, (1ULL << 40) + 3), 0.201066539f);
}

TEST(Philox, MomentsAreThoseOfTheNormalDistribution) {
  constexpr size_t count = 1 << 20;
  std::vector<float> values(count);
  fill_normal(stream_key(7, "moments"), 0, count, 1.0, values.data());
  double sums[4] = {};
  double neighbours = 0;
  size_t beyond_two = 0;
  for (size_t i = 0; i < count; ++i) {
    double power = 1;
    for (double& sum : sums) sum += power *= values[i];
    neighbours += i > 0 ? values[i] * values[i - 1] : 0;
    beyond_two += std::abs(values[i]) > 2;
  }
  // The tolerance is five standard errors; the k-th moment has variance E[x^2k] - E[x^k]^2.
  const double error = 5 / std::sqrt(count);
  EXPECT_NEAR(sums[0] / count, 0, error);
  EXPECT_NEAR(sums[1] / count, 1, error * std::sqrt(2));
  EXPECT_NEAR(sums[2] / count, 0, error * std::sqrt(15));
  EXPECT_NEAR(sums[3] / count, 3, error * std::sqrt(96));
  EXPECT_NEAR(neighbours / count, 0, error);
  EXPECT_NEAR(static_cast<double>(beyond_two) / count, 0.0455003, error * std::sqrt(0.0455 * 0.9545));
}

TEST(Philox, StreamsAreUncorrelated) {
  constexpr uint64_t count = 100000;
  std::vector<float> one(count), other(count);
  fill_normal(stream_key(1, "a"), 0, count, 1.0, one.data());
  fill_normal(stream_key(1, "b"), 0, count, 1.0, other.data());
  double product = 0;
  for (size_t i = 0; i < count; ++i) product += one[i] * other[i];
  EXPECT_NEAR(product / count, 0, 5 / std::sqrt(count));
}

TEST(Philox, AnyChunkHoldsTheSameNumbers) {
  const uint64_t key = stream_key(3, "chunks");
  std::vector<float> whole(67);
  fill_normal(key, 0, whole.size(), 1.0, whole.data());
  for (uint64_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i], standard_normal(key, i));
  for (uint64_t first = 0; first < whole.size(); ++first) {
    for (uint64_t count = 0; first + count <= whole.size(); ++count) {
      std::vector<float> chunk(count + 1, -77.0f);
      fill_normal(key, first, count, 1.0, chunk.data());
      ASSERT_TRUE(std::equal(chunk.begin(), chunk.end() - 1, whole.begin() + static_cast<ptrdiff_t>(first)));
      ASSERT_EQ(chunk.back(), -77.0f) << "wrote past the end";
    }
  }
}

TEST(Philox, ScaleMultipliesBeforeRounding) {
  const uint64_t key = stream_key(3, "scale");
  std::vector<float> values(100);
  fill_normal(key, 11, values.size(), 0.02, values.data());
  for (uint64_t i = 0; i < values.size(); ++i) EXPECT_FLOAT_EQ(values[i], 0.02f * standard_normal(key, 11 + i));
}

}  // namespace
}  // namespace copus
