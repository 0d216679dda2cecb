// Simulates the cost of the agreement that all ranks reach once a step, for more ranks than a test could start.
// Compares the method of earlier versions, messages from every rank to all others, with today's reduction rounds.
#pragma once

#include <cstdint>
#include <span>

#include "copus/comm/messages/reduction_simulation.h"

namespace copus {

struct AgreementCost {
  int64_t ranks = 0;
  int64_t messages = 0;    // of all ranks
  int64_t bytes = 0;       // in all messages
  int64_t most_peers = 0;  // the largest number of ranks with which one rank exchanges messages
  double seconds = 0;      // from the common start until the last rank is done
};

// Returns the cost of the earlier method, for `ranks` >= 1. Every rank sends every other rank one message of 1,832
// bytes plus 48 per rank. If that is more than 16 KiB, it sends two smaller messages instead, each with one rank's part
// of these bytes.
AgreementCost cost_of_agreement_with_all(int64_t ranks, const MessageCosts& costs);

// Returns the cost of today's method: an all-reduce of the sums, then one of the latest time, by reduction_rounds.
AgreementCost cost_of_agreement_by_rounds(int64_t ranks, const MessageCosts& costs);

// Returns the seconds that doubling the ranks adds: the slope of the least-squares line through the seconds over the
// logarithms of the ranks. Requires at least two different numbers of ranks.
double seconds_by_doubling(std::span<const AgreementCost> costs);

}  // namespace copus
