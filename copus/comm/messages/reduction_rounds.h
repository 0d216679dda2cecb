// The messages by which members of a group reduce a small vector where it does not matter which terms are added first:
// recursive doubling (Thakur, Rabenseifner & Gropp 2005, section 4.1). A plan without threads and connections, which a
// transport carries out, and which tests carry out for thousands of members at once.
//
// For n members, with 2^k <= n < 2^(k+1): the first 2 (n - 2^k) members form pairs, and the second of each gives its
// values to the first. The 2^k that are left exchange what they have with the one at distance 1, 2, 4, ..., each time
// between neighbouring blocks of members; then the firsts of pairs hand the result back. So a member has at most k + 1
// peers, and the result comes after k rounds, or k + 2 where n is no power of two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "copus/comm/operation.h"

namespace copus {

// What a member does before its next round: send what it has, and take in what comes. It does both at once.
struct ReductionRound {
  // Where the values that come belong: to members before or after those whose values this member has, or to all of
  // them together, so that they take the place of its own.
  enum class Received { before, after, instead };

  int64_t send_to = -1;       // -1: nobody
  int64_t receive_from = -1;  // likewise
  Received received = Received::after;
};

// Returns the rounds of one member, without those in which it does nothing.
std::vector<ReductionRound> reduction_rounds(int64_t size, int64_t member);

// Whether an all-reduce goes by these rounds: it is of at most small_all_reduce_bytes, and its result does not depend
// on which terms are added first. That holds for sums of integers, which wrap, and for maxima: as the rounds keep the
// order of the members, signs of zeros and NaNs too are bitwise what reduce_elements makes of all values at once.
bool goes_by_rounds(const Operation& all_reduce);

// Up to this size every member of an all-reduce gets all values, instead of its part of them and then others' results.
inline constexpr int64_t small_all_reduce_bytes = 16 << 10;

// Takes `received` into `values`, which have `count` elements each.
void take_in(const std::byte* received, ReductionRound::Received place, std::byte* values, int64_t count, DataType type,
             Reduction reduction);

}  // namespace copus
