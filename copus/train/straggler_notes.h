// Says which ranks are slower than their peers: once when a rank falls behind, and again only after it has kept up for
// a while.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "copus/description/parallel_strategy.h"
#include "copus/performance/stragglers.h"

namespace copus {

class StragglerNotes {
 public:
  explicit StragglerNotes(const ParallelStrategy& strategy);

  // The layout has changed: other ranks are peers now.
  void change_layout(const ParallelStrategy& strategy);

  // What there is to say after a step.
  std::vector<std::string> add(int64_t step, const std::vector<PartSeconds>& seconds_by_rank);

 private:
  static constexpr int64_t steps_to_keep_up = 100;
  std::vector<int64_t> stages_;                  // of each rank
  std::vector<std::vector<PartSeconds>> steps_;  // the latest, oldest first
  std::map<int64_t, int64_t> last_slow_;         // by rank, the step
};

}  // namespace copus
