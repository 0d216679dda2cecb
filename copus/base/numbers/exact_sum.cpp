#include "copus/base/numbers/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace copus {
namespace {

// Digit i counts multiples of 2^(32 i - 1074); 2^-1074 is the smallest double. The counts of +inf, -inf and NaN follow
// the digits.
constexpr int digit_bits = 32;
constexpr uint64_t digit_mask = 0xFFFFFFFF;
constexpr int lowest_exponent = -1074;
constexpr int64_t num_digits = ExactSum::num_words - 3;
constexpr int64_t positive_infinities = num_digits;
constexpr int64_t negative_infinities = num_digits + 1;
constexpr int64_t not_numbers = num_digits + 2;

constexpr int fraction_bits = std::numeric_limits<double>::digits - 1;  // 52, stored; the 53rd is implied

using Digits = std::array<uint32_t, num_digits>;

// The digits hold the largest sum that may occur: 2^60 terms below 2^1024 each.
static_assert(num_digits * digit_bits > 60 + 1024 - lowest_exponent);

// Carries the excess of each word into the next word, so that every digit has 32 bits. Writes the magnitude into
// `digits` and returns whether the number is negative.
bool carry(const std::array<int64_t, ExactSum::num_words>& words, Digits& digits) {
  int64_t carried = 0;
  for (int64_t i = 0; i < num_digits; ++i) {
    const int64_t word = words[i] + carried;
    digits[i] = static_cast<uint32_t>(static_cast<uint64_t>(word) & digit_mask);
    carried = word >> digit_bits;
  }
  if (carried == 0) return false;
  uint64_t inverted = 1;  // two's complement: invert and add one
  for (uint32_t& digit : digits) {
    inverted += ~digit;
    digit = static_cast<uint32_t>(inverted & digit_mask);
    inverted >>= digit_bits;
  }
  return true;
}

int64_t bit_at(const Digits& digits, int64_t position) {
  return (digits[position / digit_bits] >> (position % digit_bits)) & 1U;
}

bool any_bit_below(const Digits& digits, int64_t position) {
  for (int64_t i = 0; i < position / digit_bits; ++i) {
    if (digits[i] != 0) return true;
  }
  const uint32_t below = (uint32_t{1} << (position % digit_bits)) - 1;
  return (digits[position / digit_bits] & below) != 0;
}

// Rounds the magnitude to the nearest double, a tie to the even one; infinity beyond the largest double.
double round_to_double(const Digits& digits) {
  int64_t leading = num_digits * digit_bits - 1;
  while (leading >= 0 && bit_at(digits, leading) == 0) --leading;
  // The lowest bit that fits into a double with this leading bit; subnormal numbers end at bit 0.
  const int64_t lowest = leading > fraction_bits ? leading - fraction_bits : 0;
  int64_t significand = 0;
  for (int64_t position = leading; position >= lowest; --position) {
    significand = 2 * significand + bit_at(digits, position);
  }
  if (lowest > 0 && bit_at(digits, lowest - 1) == 1) {
    const bool above_half = any_bit_below(digits, lowest - 1);
    if (above_half || significand % 2 == 1) ++significand;
  }
  return std::ldexp(static_cast<double>(significand), static_cast<int>(lowest) + lowest_exponent);
}

}  // namespace

void ExactSum::add(double value) {
  if (std::isnan(value)) {
    ++words_[not_numbers];
    return;
  }
  if (std::isinf(value)) {
    ++words_[value > 0 ? positive_infinities : negative_infinities];
    return;
  }
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint64_t fraction = bits & ((uint64_t{1} << fraction_bits) - 1);
  const uint64_t exponent = (bits >> fraction_bits) & 0x7FF;
  // value = significand * 2^(shift - 1074). Subnormal numbers (exponent 0) have no implied bit and the same shift as
  // exponent 1.
  const uint64_t significand = exponent == 0 ? fraction : fraction | (uint64_t{1} << fraction_bits);
  const uint64_t shift = exponent == 0 ? 0 : exponent - 1;

  const uint64_t low = (significand & digit_mask) << (shift % digit_bits);
  const uint64_t high = ((significand >> digit_bits) << (shift % digit_bits)) + (low >> digit_bits);
  const int64_t sign = value < 0 ? -1 : 1;
  int64_t* const words = &words_[shift / digit_bits];
  words[0] += sign * static_cast<int64_t>(low & digit_mask);
  words[1] += sign * static_cast<int64_t>(high & digit_mask);
  words[2] += sign * static_cast<int64_t>(high >> digit_bits);
}

// Propagates carries after each merge. So the spare bits of a word limit only how many terms one sum can take, and not
// how many sums can be merged. The last digit keeps the sign.
void ExactSum::add(const ExactSum& other) {
  for (int64_t i = 0; i < num_words; ++i) words_[i] += other.words_[i];
  for (int64_t i = 0; i + 1 < num_digits; ++i) {
    words_[i + 1] += words_[i] >> digit_bits;
    words_[i] &= static_cast<int64_t>(digit_mask);
  }
}

void ExactSum::subtract(const ExactSum& other) {
  ExactSum negated;
  for (int64_t i = 0; i < num_digits; ++i) negated.words_[i] = -other.words_[i];
  negated.words_[positive_infinities] = other.words_[negative_infinities];
  negated.words_[negative_infinities] = other.words_[positive_infinities];
  negated.words_[not_numbers] = other.words_[not_numbers];
  add(negated);
}

double ExactSum::value() const {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const bool both_infinities = words_[positive_infinities] > 0 && words_[negative_infinities] > 0;
  if (words_[not_numbers] > 0 || both_infinities) return std::numeric_limits<double>::quiet_NaN();
  if (words_[positive_infinities] > 0) return infinity;
  if (words_[negative_infinities] > 0) return -infinity;
  Digits digits;
  const bool negative = carry(words_, digits);
  const double magnitude = round_to_double(digits);
  return negative ? -magnitude : magnitude;
}

}  // namespace copus
