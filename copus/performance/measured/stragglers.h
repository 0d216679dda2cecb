// Finds ranks that compute more slowly than other ranks with the same work.
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

// Seconds of a rank's own computation in one step, by StepPart. They exclude waiting: a slow rank makes the others
// wait, not itself.
using PartSeconds = std::array<double, num_step_parts>;

struct Straggler {
  int64_t rank;
  StepPart part;  // the part that loses most of the time
  double ratio;   // computing time relative to the peers' median; the median of this ratio over the slow steps
  bool operator==(const Straggler&) const = default;
};

// A straggler exceeds straggler_ratio times its peers' median computing time in at least straggler_steps of the last
// straggler_window steps. A single slow step is noise.
inline constexpr double straggler_ratio = 1.3;
inline constexpr int64_t straggler_steps = 3;
inline constexpr int64_t straggler_window = 5;

// Returns the stragglers, in the order of the ranks. `steps` is indexed by step, oldest first, then by world rank; only
// the last straggler_window steps count. `stages` is each rank's pipeline coordinate. The peers of a rank are the other
// ranks of its stage, since stages have different work. A rank without peers cannot be judged. Takes n log n operations
// for n ranks.
std::vector<Straggler> find_stragglers(std::span<const std::vector<PartSeconds>> steps,
                                       const std::vector<int64_t>& stages);

// Reports ranks that are slower than their peers: once when a rank falls behind, and again only after it has kept up
// for a while.
class StragglerNotes {
 public:
  explicit StragglerNotes(const ParallelStrategy& strategy);

  // Starts again after a change of layout, since the peers have changed.
  void change_layout(const ParallelStrategy& strategy);

  // Returns the reports that are due after a step.
  std::vector<std::string> add(int64_t step, const std::vector<PartSeconds>& seconds_by_rank);

 private:
  static constexpr int64_t steps_to_keep_up = 100;
  std::vector<int64_t> stages_;                  // by rank
  std::vector<std::vector<PartSeconds>> steps_;  // the latest, oldest first
  std::map<int64_t, int64_t> last_slow_;         // by rank, the latest step in which it was slow
};

}  // namespace copus
