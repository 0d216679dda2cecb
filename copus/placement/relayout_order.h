// Decides in which order the contents of buckets (a decoder layer, the embedding, the final norm with the head) move,
// and which of these moves share a round. The aim is that no process ever needs much more memory than before or after
// the re-layout. Only this room's sources include this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace copus::relayout {

struct Change {
  int64_t process = 0;
  int64_t bytes = 0;
};

// The move of one content: the bytes that processes allocate before it and release after it.
struct Move {
  int64_t content = 0;
  std::vector<Change> allocated, released;
};

using Rounds = std::vector<std::vector<size_t>>;  // indices of moves

// Returns the indices of moves in a greedy order. `live` holds each process' bytes of state before the first move. The
// next move is always the one after which the fullest of its allocating processes holds the fewest bytes. Ties go to
// the move that frees memory of the fullest process, then to the move that frees most.
std::vector<size_t> fill_lowest_first(const std::vector<Move>& moves, std::vector<int64_t> live);

Rounds one_a_round(const std::vector<size_t>& order);

// Lets consecutive moves share a round while no process exceeds `limit` bytes.
Rounds share_rounds(const std::vector<Move>& moves, const std::vector<size_t>& order, std::vector<int64_t> live,
                    int64_t limit);

// Returns each process's peak bytes.
std::vector<int64_t> find_peaks(const std::vector<Move>& moves, const Rounds& rounds, std::vector<int64_t> live);

// Returns the largest number in `bytes`.
int64_t highest(const std::vector<int64_t>& bytes);

}  // namespace copus::relayout
