// Sums doubles exactly, so that the order of the terms does not matter. A norm thus does not depend on which rank holds
// which shard. The sum is a fixed-point number that is wide enough for every double (Kulisch's long accumulator). It
// has 32-bit digits, each in a signed 64-bit word. Carries are propagated only after a merge. Two accumulators are thus
// merged by adding their words, which is associative.
#pragma once

#include <array>
#include <cstdint>

namespace copus {

class ExactSum {
 public:
  // Words for 2^-1074 .. 2^1024 in digits of 32 bits, for carries, and for the counts of +inf, -inf and NaN.
  static constexpr int64_t num_words = 72;

  // Adds one term, or another sum. At most 2^30 terms may be added to a sum one by one, and any number of sums.
  void add(double value);
  void add(const ExactSum& other);
  // Adds the negated terms of `other`.
  void subtract(const ExactSum& other);

  // Returns the sum, rounded once to the nearest double, ties to even; inf or NaN as IEEE addition would give.
  double value() const;

  // The words, for a reduction over ranks: adding words adds the sums. A reduction may add at most 2^30 sums. Before
  // it, the last call on each sum must have been add(const ExactSum&), which propagates carries.
  std::array<int64_t, num_words>& words() { return words_; }
  const std::array<int64_t, num_words>& words() const { return words_; }

 private:
  std::array<int64_t, num_words> words_{};
};

}  // namespace copus
