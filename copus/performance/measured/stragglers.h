// Finds ranks that compute more slowly than other ranks with the same work (stragglers).
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

// A rank's computing seconds in one step, by StepPart. Waiting does not count, because a slow rank makes only the
// others wait.
using PartSeconds = std::array<double, num_step_parts>;

struct Straggler {
  int64_t rank;
  StepPart part;  // the part with the greatest loss
  double ratio;   // median over the slow steps of computing time / the peers' median
  bool operator==(const Straggler&) const = default;
};

// A straggler computes for more than straggler_ratio times its peers' median in at least straggler_steps of the last
// straggler_window steps. A single slow step is noise.
inline constexpr double straggler_ratio = 1.3;
inline constexpr int64_t straggler_steps = 3;
inline constexpr int64_t straggler_window = 5;

// Returns the stragglers by ascending rank. `steps`: by step, oldest first, and world rank; only the last
// straggler_window steps count. `stages`: by rank, its pipeline coordinate. A rank is compared only with the other
// ranks of its stage (its peers), because stages differ in work; a rank without peers is never a straggler. Takes O(n
// log n) for n ranks.
std::vector<Straggler> find_stragglers(std::span<const std::vector<PartSeconds>> steps,
                                       const std::vector<int64_t>& stages);

// Reports each straggler when it falls behind, and again only if it falls behind after it has kept up for a while.
class StragglerNotes {
 public:
  explicit StragglerNotes(const ParallelStrategy& strategy);

  // Forgets all steps after a change of layout, because peers have changed.
  void change_layout(const ParallelStrategy& strategy);

  // Adds a step and returns the new reports.
  std::vector<std::string> add(int64_t step, const std::vector<PartSeconds>& seconds_by_rank);

 private:
  static constexpr int64_t steps_to_keep_up = 100;
  std::vector<int64_t> stages_;                  // by rank
  std::vector<std::vector<PartSeconds>> steps_;  // the latest, oldest first
  std::map<int64_t, int64_t> last_slow_;         // by rank: the latest slow step
};

}  // namespace copus
