// Gathers each rank's computing seconds on rank 0, which looks for stragglers. This is not urgent, so ranks send the
// seconds of several steps together.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "copus/comm/world.h"
#include "copus/performance/measured/stragglers.h"

namespace copus {

struct StepSeconds {
  int64_t step = 0;
  std::vector<PartSeconds> by_rank;  // by world rank
  bool operator==(const StepSeconds&) const = default;
};

class SecondsByRank {
 public:
  // Stores this rank's seconds of a step, and gathers once straggler_window steps are stored. Every rank calls it for
  // the same steps.
  void add(int64_t step, const PartSeconds& mine, World& world);

  // Gathers the seconds stored so far. Every rank calls it, at the end and before the set of ranks changes.
  void gather(World& world);

  // Returns the steps that rank 0 has gathered since the last call, oldest first; empty on other ranks.
  std::vector<StepSeconds> take() { return std::exchange(gathered_, {}); }

 private:
  std::vector<int64_t> steps_;     // steps whose seconds are stored
  std::vector<PartSeconds> mine_;  // by step
  std::vector<StepSeconds> gathered_;
};

}  // namespace copus
