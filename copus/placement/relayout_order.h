// Decides the order in which contents of buckets move (a decoder layer, the embedding, the final norm with the head),
// and which moves share a round. The aim is that no process ever holds much more memory than the larger of its states
// before and after the whole re-layout. `live` is the number of state bytes of each process before the first move. Only
// this room's sources include this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace copus::relayout {

struct Change {
  int64_t process = 0;
  int64_t bytes = 0;
};

// The move of one content: what processes allocate before it, and release after it.
struct Move {
  int64_t content = 0;
  std::vector<Change> allocated, released;
};

using Rounds = std::vector<std::vector<size_t>>;  // indices of moves

// Returns the indices of moves in a greedy order. A move allocates memory on some processes and releases memory on
// others. The next move is the one after which the fullest of its allocating processes holds least. Ties are broken by
// the move that relieves the fullest process, then by the one that frees most.
std::vector<size_t> fill_lowest_first(const std::vector<Move>& moves, std::vector<int64_t> live);

Rounds one_a_round(const std::vector<size_t>& order);

// Puts consecutive moves into one round as long as no process holds more than `limit` bytes.
Rounds share_rounds(const std::vector<Move>& moves, const std::vector<size_t>& order, std::vector<int64_t> live,
                    int64_t limit);

// Returns the maximum number of bytes that each process holds at any time.
std::vector<int64_t> find_peaks(const std::vector<Move>& moves, const Rounds& rounds, std::vector<int64_t> live);

// Returns the bytes of the process that holds most.
int64_t highest(const std::vector<int64_t>& bytes);

}  // namespace copus::relayout
