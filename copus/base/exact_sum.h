// A sum of doubles that does not depend on the order of its terms, so that a norm does not depend on which rank holds
// which shard. A fixed-point number wide enough for every double (Kulisch's long accumulator) in 32-bit digits, each
// kept in a signed 64-bit word: carries wait, so that accumulators are merged by adding words, which is associative;
// each merge carries once.
#pragma once

#include <array>
#include <cstdint>

namespace copus {

class ExactSum {
 public:
  // 2^-1074 .. 2^1024 in digits of 32 bits, room for carries, and the counts of +inf, -inf and NaN.
  static constexpr int64_t num_words = 72;

  // At most 2^30 terms one by one into one sum; any number of sums of them.
  void add(double value);
  void add(const ExactSum& other);
  // As adding the negated terms of the other.
  void subtract(const ExactSum& other);

  // The sum, correctly rounded to nearest even; inf or NaN as IEEE addition would give.
  double value() const;

  // For a reduction over ranks: sums of words are sums of values, in up to 2^30 sums of the kind that add(const
  // ExactSum&) leaves.
  std::array<int64_t, num_words>& words() { return words_; }
  const std::array<int64_t, num_words>& words() const { return words_; }

 private:
  std::array<int64_t, num_words> words_{};
};

}  // namespace copus
