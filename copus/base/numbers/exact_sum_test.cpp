#include "copus/base/numbers/exact_sum.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "copus/base/numbers/philox.h"

namespace copus {
namespace {

using Limits = std::numeric_limits<double>;

double exact_sum(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

// A reference that computes the sum by another method: as a list of doubles that do not overlap (Shewchuk, "Adaptive
// precision floating-point arithmetic", 1997), rounded once, ties to even. Partial sums must not overflow.
double sum_by_expansion(const std::vector<double>& values) {
  std::vector<double> parts;  // in order of increasing magnitude
  for (double value : values) {
    std::vector<double> next;
    for (double part : parts) {
      if (std::abs(value) < std::abs(part)) std::swap(value, part);
      const double high = value + part;
      const double low = part - (high - value);
      if (low != 0) next.push_back(low);
      value = high;
    }
    next.push_back(value);
    parts = std::move(next);
  }
  if (parts.empty()) return 0;
  double high = parts.back();
  parts.pop_back();
  while (!parts.empty()) {
    const double before = high;
    const double part = parts.back();
    parts.pop_back();
    high = before + part;
    const double low = part - (high - before);
    if (low == 0) continue;
    // `low` was lost in rounding. If it is exactly half a unit, the sign of the next part decides the direction.
    if (!parts.empty() && ((low < 0) == (parts.back() < 0))) {
      const double twice = 2 * low;
      const double candidate = high + twice;
      if (twice == candidate - high) high = candidate;
    }
    break;
  }
  return high;
}

uint64_t bits_of(double value) { return std::bit_cast<uint64_t>(value); }

// Returns doubles with random bits: any sign and significand, and exponents uniform from `lowest` to `highest`.
std::vector<double> random_doubles(uint64_t seed, size_t count, int lowest, int highest) {
  const uint64_t key = stream_key(seed, "exact sum");
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i) {
    const auto random = philox(key, 0, i);
    const uint64_t significand = (uint64_t{random[0]} << 32 | random[1]) >> 11;
    const int exponent = lowest + static_cast<int>(random[2] % static_cast<uint32_t>(highest - lowest + 1));
    const double magnitude = std::ldexp(static_cast<double>(significand), exponent - 53);
    values.push_back(random[3] % 2 == 0 ? magnitude : -magnitude);
  }
  return values;
}

std::vector<double> shuffled(std::vector<double> values, uint64_t seed) {
  const uint64_t key = stream_key(seed, "shuffle");
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[philox(key, 0, i)[0] % i]);
  return values;
}

TEST(ExactSum, OfNothingIsZero) {
  EXPECT_EQ(bits_of(ExactSum().value()), bits_of(0.0));
  EXPECT_EQ(bits_of(exact_sum({1.5, -1.5})), bits_of(0.0));
}

TEST(ExactSum, OfOneTermIsTheTerm) {
  for (const double value : {1.0, -1.0, 0.1, Limits::max(), Limits::lowest(), Limits::min(), -Limits::min(),
                             Limits::denorm_min(), -Limits::denorm_min(), Limits::min() - Limits::denorm_min()}) {
    EXPECT_EQ(bits_of(exact_sum({value})), bits_of(value)) << value;
  }
  for (const double value : random_doubles(1, 2000, -1060, 1023))
    EXPECT_EQ(bits_of(exact_sum({value})), bits_of(value));
}

TEST(ExactSum, LosesNothingToCancellation) {
  EXPECT_EQ(exact_sum({1e100, 1, -1e100}), 1);
  EXPECT_EQ(exact_sum({1e308, 1e308, 1e-308, -1e308, -1e308}), 1e-308);
  EXPECT_EQ(exact_sum({Limits::max(), Limits::denorm_min(), Limits::lowest()}), Limits::denorm_min());
}

TEST(ExactSum, RoundsToNearestEven) {
  const double unit = Limits::epsilon();  // the spacing of doubles in [1, 2)
  EXPECT_EQ(exact_sum({1, unit / 2}), 1);
  EXPECT_EQ(exact_sum({1, unit / 2, Limits::denorm_min()}), 1 + unit);
  EXPECT_EQ(exact_sum({1, unit / 2, -Limits::denorm_min()}), 1);
  EXPECT_EQ(exact_sum({1 + unit, unit / 2}), 1 + 2 * unit);
  EXPECT_EQ(exact_sum({-1, -unit / 2}), -1);
  EXPECT_EQ(exact_sum({-1 - unit, -unit / 2}), -1 - 2 * unit);
  EXPECT_EQ(exact_sum({2 - unit, unit / 2}), 2);  // the significand overflows into the next power of two
}

TEST(ExactSum, IsExactAmongSubnormalNumbers) {
  const double smallest = Limits::denorm_min();
  EXPECT_EQ(exact_sum({smallest, smallest, smallest}), 3 * smallest);
  EXPECT_EQ(exact_sum({Limits::min(), -smallest}), Limits::min() - smallest);
  EXPECT_EQ(exact_sum({Limits::min() - smallest, smallest}), Limits::min());
}

TEST(ExactSum, OverflowsWhereTheRoundedSumDoes) {
  const double half_unit = std::ldexp(1.0, 1023 - 53);
  EXPECT_EQ(exact_sum({Limits::max(), half_unit}), Limits::infinity());
  EXPECT_EQ(exact_sum({Limits::max(), std::nextafter(half_unit, 0)}), Limits::max());
  EXPECT_EQ(exact_sum({Limits::lowest(), Limits::lowest()}), -Limits::infinity());
  EXPECT_EQ(exact_sum({Limits::max(), Limits::max(), Limits::lowest()}), Limits::max());
}

TEST(ExactSum, TreatsInfinityAndNanAsAdditionDoes) {
  const double infinity = Limits::infinity(), nan = Limits::quiet_NaN();
  EXPECT_EQ(exact_sum({1, infinity, Limits::lowest()}), infinity);
  EXPECT_EQ(exact_sum({-infinity, Limits::max()}), -infinity);
  EXPECT_TRUE(std::isnan(exact_sum({infinity, 1, -infinity})));
  EXPECT_TRUE(std::isnan(exact_sum({nan, 1})));
  EXPECT_TRUE(std::isnan(exact_sum({nan, infinity})));
}

TEST(ExactSum, AgreesWithTheReferenceAtAllMagnitudes) {
  const std::pair<int, int> ranges[] = {{-1, 1}, {-30, 30}, {-500, 500}, {-1060, 1000}, {-1060, -1010}};
  for (uint64_t trial = 0; trial < 400; ++trial) {
    const auto [lowest, highest] = ranges[trial % std::size(ranges)];
    const auto values = random_doubles(100 + trial, 1 + trial % 97, lowest, highest);
    EXPECT_EQ(bits_of(exact_sum(values)), bits_of(sum_by_expansion(values))) << "trial " << trial;
  }
}

TEST(ExactSum, AgreesWithIntegerArithmetic) {
  // Terms are integers below 2^53 whose sum needs more than 53 bits: converting the exact integer rounds it once.
  for (uint64_t trial = 0; trial < 200; ++trial) {
    std::vector<double> values;
    int64_t expected = 0;
    for (uint64_t i = 0; i < 500; ++i) {
      const auto random = philox(stream_key(trial, "integers"), 0, i);
      const int64_t value = static_cast<int64_t>((uint64_t{random[0]} << 32 | random[1]) >> 11);
      expected += value;
      values.push_back(static_cast<double>(value));
    }
    EXPECT_EQ(exact_sum(values), static_cast<double>(expected));
  }
}

TEST(ExactSum, DoesNotDependOnOrderOrGrouping) {
  const auto values = random_doubles(5, 3000, -1060, 1000);
  ExactSum whole;
  for (const double value : values) whole.add(value);
  for (uint64_t trial = 0; trial < 20; ++trial) {
    // Deals the terms out to ranks in another order and merges the words, as a reduction does.
    const size_t ranks = 1 + trial;
    std::vector<ExactSum> parts(ranks);
    size_t dealt = 0;
    for (const double value : shuffled(values, trial)) parts[philox(trial, 1, dealt++)[0] % ranks].add(value);
    ExactSum reduced, merged, reduced_carried;
    for (const ExactSum& part : parts) {
      ExactSum carried;
      carried.add(part);
      for (size_t i = 0; i < part.words().size(); ++i) {
        reduced.words()[i] += part.words()[i];
        reduced_carried.words()[i] += carried.words()[i];
      }
      merged.add(part);
    }
    EXPECT_EQ(reduced.words(), whole.words());
    EXPECT_EQ(bits_of(reduced_carried.value()), bits_of(whole.value()));
    EXPECT_EQ(bits_of(merged.value()), bits_of(whole.value()));
  }
}

// The term whose 53 significant bits are all 1, so that words grow as fast as they can.
double widest_term(int exponent) { return std::ldexp(static_cast<double>((int64_t{1} << 53) - 1), exponent); }

TEST(ExactSum, HoldsTwoToThirtyTerms) {
  for (const int exponent : {0, 11, 31, -1000, 900}) {
    for (const double sign : {1.0, -1.0}) {
      ExactSum sum;
      sum.add(sign * widest_term(exponent));
      for (int64_t& word : sum.words()) word <<= 30;  // as if the term had been added 2^30 times
      EXPECT_EQ(sum.value(), sign * std::ldexp(widest_term(exponent), 30));
    }
  }
}

TEST(ExactSum, HoldsMoreTermsInSumsOfSums) {
  for (const int exponent : {0, 11, 31, -1000, 900}) {
    for (const double sign : {1.0, -1.0}) {
      ExactSum sum;
      sum.add(sign * widest_term(exponent));
      for (int doubling = 0; doubling < 50; ++doubling) sum.add(ExactSum(sum));
      EXPECT_EQ(sum.value(), sign * std::ldexp(widest_term(exponent), 50));
    }
  }
}

TEST(ExactSum, TakesAwayWhatWasAdded) {
  const std::vector<double> kept = {1e-300, -3.25, 1e17}, taken = {1e200, -0.1, 7e-12, 1e200};
  ExactSum sum, other;
  for (const double value : kept) sum.add(value);
  for (const double value : taken) {
    sum.add(value);
    other.add(value);
  }
  sum.subtract(other);
  EXPECT_EQ(sum.value(), exact_sum(kept));
  ExactSum negative;
  negative.subtract(other);
  negative.subtract(other);
  EXPECT_EQ(negative.value(), -2 * exact_sum(taken));
}

TEST(ExactSum, WhatIsNotFiniteCannotBeTakenAway) {
  constexpr double infinity = Limits::infinity();
  const auto one_less = [](double value) {
    ExactSum sum, other;
    sum.add(1);
    other.add(value);
    sum.subtract(other);
    return sum;
  };
  EXPECT_EQ(one_less(infinity).value(), -infinity);
  EXPECT_EQ(one_less(-infinity).value(), infinity);
  EXPECT_TRUE(std::isnan(one_less(std::nan("")).value()));
  ExactSum difference;
  difference.add(infinity);
  difference.add(one_less(infinity));
  EXPECT_TRUE(std::isnan(difference.value()));
}

}  // namespace
}  // namespace copus
