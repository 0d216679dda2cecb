#include "copus/placement/relayout_order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace copus::relayout {

namespace {

int64_t highest_with(const std::vector<Change>& changes, const std::vector<int64_t>& live) {
  int64_t highest = 0;
  for (const Change& change : changes) {
    highest = std::max(highest, live[change.process] + change.bytes);
  }
  return highest;
}

int64_t total_bytes(const std::vector<Change>& changes) {
  return std::accumulate(changes.begin(), changes.end(), int64_t{0},
                         [](int64_t sum, const Change& change) { return sum + change.bytes; });
}

void apply(const std::vector<Change>& changes, int64_t sign, std::vector<int64_t>& live) {
  for (const Change& change : changes) live[change.process] += sign * change.bytes;
}

}  // namespace

std::vector<size_t> fill_lowest_first(const std::vector<Move>& moves, std::vector<int64_t> live) {
  std::vector<size_t> remaining(moves.size()), order;
  std::iota(remaining.begin(), remaining.end(), size_t{0});
  while (!remaining.empty()) {
    using Preference = std::tuple<int64_t, int64_t, int64_t>;
    size_t best = 0;
    Preference best_preference{std::numeric_limits<int64_t>::max(), 0, 0};
    for (size_t i = 0; i < remaining.size(); ++i) {
      const Move& move = moves[remaining[i]];
      int64_t relieved = 0;
      for (const Change& change : move.released) {
        relieved = std::max(relieved, live[change.process]);
      }
      const Preference preference{highest_with(move.allocated, live), -relieved,
                                  total_bytes(move.allocated) - total_bytes(move.released)};
      if (preference < best_preference) {
        best_preference = preference;
        best = i;
      }
    }
    apply(moves[remaining[best]].allocated, 1, live);
    apply(moves[remaining[best]].released, -1, live);
    order.push_back(remaining[best]);
    remaining.erase(remaining.begin() + static_cast<std::ptrdiff_t>(best));
  }
  return order;
}

Rounds one_a_round(const std::vector<size_t>& order) {
  Rounds rounds;
  for (const size_t move : order) rounds.push_back({move});
  return rounds;
}

Rounds share_rounds(const std::vector<Move>& moves, const std::vector<size_t>& order, std::vector<int64_t> live,
                    int64_t limit) {
  Rounds rounds;
  for (const size_t next : order) {
    if (rounds.empty() || highest_with(moves[next].allocated, live) > limit) {
      if (!rounds.empty()) {
        for (const size_t move : rounds.back()) apply(moves[move].released, -1, live);
      }
      rounds.emplace_back();
    }
    rounds.back().push_back(next);
    apply(moves[next].allocated, 1, live);
  }
  return rounds;
}

std::vector<int64_t> find_peaks(const std::vector<Move>& moves, const Rounds& rounds, std::vector<int64_t> live) {
  std::vector<int64_t> peaks = live;
  for (const std::vector<size_t>& round : rounds) {
    for (const size_t move : round) apply(moves[move].allocated, 1, live);
    for (size_t i = 0; i < live.size(); ++i) peaks[i] = std::max(peaks[i], live[i]);
    for (const size_t move : round) apply(moves[move].released, -1, live);
  }
  return peaks;
}

int64_t highest(const std::vector<int64_t>& bytes) { return *std::max_element(bytes.begin(), bytes.end()); }

}  // namespace copus::relayout
