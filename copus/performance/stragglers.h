// Finds ranks that compute slower than those that do the same work.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

enum class StepPart { forward, backward, optimizer };
inline constexpr int64_t num_step_parts = 3;
std::string_view to_string(StepPart part);

// Seconds of a rank's own computing in one step, by StepPart. Waiting for others is left out: a slow rank makes the
// others wait, not itself.
using PartSeconds = std::array<double, num_step_parts>;

struct Straggler {
  int64_t rank;
  StepPart part;  // the part in which most of the time is lost
  double ratio;   // computing time over the peers' median: the median of this over the slow steps
  bool operator==(const Straggler&) const = default;
};

// A straggler exceeds this multiple of its peers' median computing time in at least so many of the last steps: one slow
// step is noise.
inline constexpr double straggler_ratio = 1.3;
inline constexpr int64_t straggler_steps = 3;
inline constexpr int64_t straggler_window = 5;

// Finds the stragglers, in the order of the ranks. `steps`: by step, oldest first, and world rank; only the last
// straggler_window count. `stages`: each rank's pipeline coordinate. The peers of a rank are the other ranks of the
// same stage, since the stages' work differs. A rank without peers cannot be judged. For n ranks, n log n operations.
std::vector<Straggler> find_stragglers(std::span<const std::vector<PartSeconds>> steps,
                                       const std::vector<int64_t>& stages);

// Reports ranks that are slower than their peers: once when a rank falls behind, and again only after it has kept up
// for a while.
class StragglerNotes {
 public:
  explicit StragglerNotes(const ParallelStrategy& strategy);

  // Starts afresh after a change of layout, since other ranks are peers now.
  void change_layout(const ParallelStrategy& strategy);

  // Returns the reports that are due after a step.
  std::vector<std::string> add(int64_t step, const std::vector<PartSeconds>& seconds_by_rank);

 private:
  static constexpr int64_t steps_to_keep_up = 100;
  std::vector<int64_t> stages_;                  // stage of each rank
  std::vector<std::vector<PartSeconds>> steps_;  // the latest, oldest first
  std::map<int64_t, int64_t> last_slow_;         // step of the latest slowness, by rank
};

}  // namespace copus
