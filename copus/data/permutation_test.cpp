#include "copus/data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <vector>

namespace copus {
namespace {

std::vector<uint64_t> order_of(uint64_t key, uint64_t size) {
  const Permutation permutation(key, size);
  std::vector<uint64_t> order;
  for (uint64_t i = 0; i < size; ++i) order.push_back(permutation(i));
  return order;
}

TEST(Permutation, IsABijectionOfEverySize) {
  for (uint64_t size = 1; size <= 300; ++size) {
    for (uint64_t key = 0; key < 3; ++key) {
      const auto order = order_of(key, size);
      const std::set<uint64_t> images(order.begin(), order.end());
      ASSERT_EQ(images.size(), size);
      ASSERT_EQ(*images.rbegin(), size - 1);
    }
  }
  for (const uint64_t size : {4095u, 4096u, 4097u, 100003u}) {
    const auto order = order_of(7, size);
    EXPECT_EQ(std::set<uint64_t>(order.begin(), order.end()).size(), size);
  }
}

TEST(Permutation, IsABijectionOfDrawnSizesWithDrawnKeys) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 40; ++trial) {
    const uint64_t size = 1 + random() % 50'000, key = random();
    std::vector<bool> is_seen(size);
    const Permutation permutation(key, size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t image = permutation(i);
      ASSERT_TRUE(image < size && !is_seen[image]) << image << " of " << size << ", key " << key;
      is_seen[image] = true;
    }
  }
}

TEST(Permutation, DependsOnTheKeyAlone) {
  EXPECT_EQ(order_of(5, 1000), order_of(5, 1000));
  EXPECT_NE(order_of(5, 1000), order_of(6, 1000));
}

// In tiny ranges, counted over the keys, every element must reach every position equally often. The bound is 5 sigma of
// the chi-squared distribution (mean degrees, variance 2 * degrees).
TEST(Permutation, IsUniformOverTheKeysInTinyRanges) {
  for (const uint64_t size : {2u, 3u, 5u, 8u, 13u}) {
    constexpr int keys = 10000;
    std::vector<std::vector<int>> counts(size, std::vector<int>(size));
    for (uint64_t key = 0; key < keys; ++key) {
      const Permutation permutation(key * 0x9E3779B97F4A7C15ULL, size);
      for (uint64_t i = 0; i < size; ++i) ++counts[i][permutation(i)];
    }
    const double expected = static_cast<double>(keys) / static_cast<double>(size);
    double chi_squared = 0;
    for (const auto& row : counts)
      for (const int count : row) chi_squared += (count - expected) * (count - expected) / expected;
    const auto degrees = static_cast<double>((size - 1) * (size - 1));
    EXPECT_LT(chi_squared, degrees + 5 * std::sqrt(2 * degrees) + 5) << "size " << size;
  }
}

// Neighbours in the shuffled order are unrelated: no fixed stride, as many rises as falls, correlation near zero.
TEST(Permutation, LooksShuffled) {
  constexpr uint64_t size = 10000;
  const auto order = order_of(42, size);
  int rises = 0;
  int fixed_points = 0;
  double correlation = 0;
  std::set<int64_t> strides;
  const double middle = (static_cast<double>(size) - 1) / 2;
  const double variance = static_cast<double>(size) * static_cast<double>(size) / 12;
  for (uint64_t i = 0; i < size; ++i) {
    fixed_points += order[i] == i ? 1 : 0;
    if (i == 0) continue;
    rises += order[i] > order[i - 1] ? 1 : 0;
    strides.insert(static_cast<int64_t>(order[i]) - static_cast<int64_t>(order[i - 1]));
    correlation +=
        (static_cast<double>(order[i]) - middle) * (static_cast<double>(order[i - 1]) - middle) / variance / size;
  }
  EXPECT_NEAR(rises, static_cast<double>(size) / 2, 150);  // standard deviation sqrt(size / 12) = 29
  EXPECT_LT(fixed_points, 10);                             // Poisson with mean 1
  EXPECT_NEAR(correlation, 0, 0.05);                       // standard deviation 0.01
  EXPECT_GT(strides.size(), size / 2);
}

TEST(Permutation, WorksOnRangesTooLargeToStore) {
  const Permutation permutation(1, uint64_t{3} << 50);
  std::set<uint64_t> images;
  for (uint64_t i = 0; i < 1000; ++i) images.insert(permutation((uint64_t{3} << 50) - 1 - i));
  EXPECT_EQ(images.size(), 1000u);
  EXPECT_LT(*images.rbegin(), uint64_t{3} << 50);
}

}  // namespace
}  // namespace copus
