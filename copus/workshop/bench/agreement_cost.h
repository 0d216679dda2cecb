// What the agreement of all ranks costs once a step, simulated for numbers of ranks that no test can start: by messages
// of every rank to all others, as agreements were once made, and by the rounds in which they are made now.
#pragma once

#include <cstdint>
#include <span>

#include "copus/comm/messages/reduction_simulation.h"

namespace copus {

struct AgreementCost {
  int64_t ranks = 0;
  int64_t messages = 0;    // of all ranks
  int64_t bytes = 0;       // in all messages
  int64_t most_peers = 0;  // others that one rank has messages with, at most
  double seconds = 0;      // from when all ranks begin until the last of them is done
};

// One message of 1,832 bytes and 48 for each rank goes from every rank to every other; beyond 16 KiB two do, each of
// one rank's part of these bytes. `ranks` >= 1.
AgreementCost cost_of_agreement_with_all(int64_t ranks, const MessageCosts& costs);

// The sums, and then the latest time, by reduction_rounds.
AgreementCost cost_of_agreement_by_rounds(int64_t ranks, const MessageCosts& costs);

// Returns the seconds that a doubling of the ranks adds: the slope of the line through the seconds over the logarithms
// of the ranks that has the least squares. At least two different numbers of ranks.
double seconds_by_doubling(std::span<const AgreementCost> costs);

}  // namespace copus
