// Gathers the seconds for which each rank computes on rank 0, which looks for stragglers. This is not urgent, so the
// ranks keep their seconds and send the seconds of several steps together.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "copus/comm/world.h"
#include "copus/performance/measured/stragglers.h"

namespace copus {

struct StepSeconds {
  int64_t step = 0;
  std::vector<PartSeconds> by_rank;  // in the order of the world's ranks
  bool operator==(const StepSeconds&) const = default;
};

class SecondsByRank {
 public:
  // Keeps this rank's seconds of a step, and gathers once straggler_window steps are kept. Every rank calls it for the
  // same steps.
  void add(int64_t step, const PartSeconds& mine, World& world);

  // Gathers the seconds kept so far. Every rank calls it, at the end and before the set of ranks changes.
  void gather(World& world);

  // Returns the steps that rank 0 has gathered since the last call, oldest first; empty on other ranks.
  std::vector<StepSeconds> take() { return std::exchange(gathered_, {}); }

 private:
  std::vector<int64_t> steps_;     // the steps whose seconds are kept
  std::vector<PartSeconds> mine_;  // the seconds
  std::vector<StepSeconds> gathered_;
};

}  // namespace copus
