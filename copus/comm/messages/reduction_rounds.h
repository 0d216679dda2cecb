// Plans the messages with which the members of a group reduce a small vector, if the order of the additions does not
// matter: recursive doubling (Thakur, Rabenseifner & Gropp 2005, section 4.1). The plan uses no threads or connections.
// A transport executes it, and tests execute it for thousands of members at once.
//
// For n members, with 2^k <= n < 2^(k+1): the first 2 (n - 2^k) members form pairs, and the second member of each pair
// gives its values to the first. The remaining 2^k members exchange their values with the member at distance 1, 2, 4,
// ..., always between neighbouring blocks of members. Then the first member of each pair returns the result to the
// second. So a member has at most k + 1 peers, and the result is available after k rounds, or k + 2 if n is not a power
// of two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "copus/comm/operation.h"

namespace copus {

// What a member does in one round: it sends its values and, at the same time, combines them with the received values.
struct ReductionRound {
  // How to combine the received values with this member's own values. before, after: the received values are the left
  // or the right operand, because the order of the members is kept. instead: they replace the own values.
  enum class Received { before, after, instead };

  int64_t send_to = -1;       // -1: nobody
  int64_t receive_from = -1;  // -1: nobody
  Received received = Received::after;
};

// Returns the rounds of one member, without rounds in which it does nothing.
std::vector<ReductionRound> reduction_rounds(int64_t size, int64_t member);

// Returns whether an all-reduce uses these rounds: it has at most small_all_reduce_bytes, and its result does not
// depend on the order of the additions. This holds for sums of integers, which wrap, and for maxima. Because the rounds
// keep the order of the members, the results are bitwise equal to reduce_elements on all values at once, even for the
// signs of zeros and the NaNs of maxima.
bool goes_by_rounds(const Operation& all_reduce);

// Up to this size, every member of an all-reduce receives and reduces all values. Above this size, each member reduces
// only its own part, and then receives the results of the other parts.
inline constexpr int64_t small_all_reduce_bytes = 16 << 10;

// Combines `received` with `values`. Both have `count` elements.
void take_in(const std::byte* received, ReductionRound::Received place, std::byte* values, int64_t count, DataType type,
             Reduction reduction);

}  // namespace copus
