// An epoch of a job (not of the data): the period during which the job has one fixed set of ranks. When ranks come or
// go, the next epoch begins.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "copus/comm/rank_failure.h"

namespace copus {

// A member of the previous epoch that has failed. The report uses the rank that this process had in that epoch.
struct LostProcess {
  int64_t process = 0;
  FailureReport report;
};

struct Epoch {
  int64_t number = 0;                  // increases; the first is 0
  std::vector<int64_t> processes;      // by rank: staying members in ascending order, then parting members
  std::vector<LostProcess> lost = {};  // since the previous epoch
  // The machine of each rank. Ranks of one machine read each other's memory. If empty, all ranks are on one machine.
  std::vector<int64_t> machines = {};
  // The last `num_parting` ranks leave after this epoch. During it, the other ranks take over their state.
  int64_t num_parting = 0;
  std::string note = {};  // written by a member of an earlier epoch; read if all members of this epoch are new

  int64_t num_staying() const { return std::ssize(processes) - num_parting; }
};

}  // namespace copus
