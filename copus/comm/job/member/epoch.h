// An epoch: one composition of a job whose ranks come and go.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "copus/comm/rank_failure.h"

namespace copus {

// A member that was lost in the previous epoch. The report has its rank in that epoch.
struct LostProcess {
  int64_t process = 0;
  FailureReport report;
};

struct Epoch {
  int64_t number = 0;                  // increases; the first is 0
  std::vector<int64_t> processes;      // by rank: staying members in ascending order, then parting ones
  std::vector<LostProcess> lost = {};  // since the previous epoch
  // By rank: its machine. Ranks of one machine read each other's memory. Empty: all are on one machine.
  std::vector<int64_t> machines = {};
  // How many ranks, counted from the last, leave after this epoch. The others take over their state.
  int64_t num_parting = 0;
  std::string note = {};  // from a member of an earlier epoch, for newcomers that find no other rank

  int64_t num_staying() const { return std::ssize(processes) - num_parting; }
};

}  // namespace copus
