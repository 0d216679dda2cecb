// One composition of a job whose ranks come and go.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "copus/comm/rank_failure.h"

namespace copus {

// A member that was lost in the epoch before. The report's rank is the one that it had there.
struct LostProcess {
  int64_t process = 0;
  FailureReport report;
};

struct Epoch {
  int64_t number = 0;                  // grows; the first is 0
  std::vector<int64_t> processes;      // by rank: those that stay in ascending order, and then those that part
  std::vector<LostProcess> lost = {};  // since the epoch before
  // By rank: the machine that it is on. Ranks of one machine read each other's memory. Empty: all are on one.
  std::vector<int64_t> machines = {};
  // How many ranks, the last ones, leave after this epoch. The others take over the state that they hold.
  int64_t num_parting = 0;
  std::string note = {};  // from a member of an earlier epoch, for newcomers that find nobody else

  int64_t num_staying() const { return std::ssize(processes) - num_parting; }
};

}  // namespace copus
