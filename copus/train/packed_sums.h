// Exact sums within a message of integers, whose sum over the ranks is then that of the values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "copus/base/exact_sum.h"

namespace copus {

inline void append(std::vector<int64_t>& words, const ExactSum& sum) {
  words.insert(words.end(), sum.words().begin(), sum.words().end());
}

// Takes the first sum from what is left of a message.
inline ExactSum take_sum(std::span<const int64_t>& words) {
  ExactSum sum;
  std::copy_n(words.begin(), ExactSum::num_words, sum.words().begin());
  words = words.subspan(ExactSum::num_words);
  return sum;
}

}  // namespace copus
