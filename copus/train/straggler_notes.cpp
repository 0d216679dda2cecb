#include "copus/train/straggler_notes.h"

#include <cmath>
#include <utility>

#include "copus/base/error.h"
#include "copus/description/mesh.h"

namespace copus {

StragglerNotes::StragglerNotes(const ParallelStrategy& strategy) { change_layout(strategy); }

void StragglerNotes::change_layout(const ParallelStrategy& strategy) {
  const Mesh mesh(strategy);
  stages_.clear();
  for (int64_t rank = 0; rank < mesh.size(); ++rank) stages_.push_back(mesh.coordinates(rank).pipeline);
  steps_.clear();
}

std::vector<std::string> StragglerNotes::add(int64_t step, const std::vector<PartSeconds>& seconds_by_rank) {
  if (static_cast<int64_t>(steps_.size()) == straggler_window) steps_.erase(steps_.begin());
  steps_.push_back(seconds_by_rank);
  std::vector<std::string> notes;
  for (const Straggler& straggler : find_stragglers(steps_, stages_)) {
    const auto [last, is_new] = last_slow_.try_emplace(straggler.rank, step);
    const bool has_kept_up = step - std::exchange(last->second, step) > steps_to_keep_up;
    if (!is_new && !has_kept_up) continue;
    notes.push_back(concat("straggler  rank ", straggler.rank, " computes ", std::round(straggler.ratio * 10) / 10,
                           " times as long as its peers, most of it in ", to_string(straggler.part)));
  }
  return notes;
}

}  // namespace copus
