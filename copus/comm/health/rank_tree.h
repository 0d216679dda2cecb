// The tree along which the ranks of a job monitor each other. The parent of rank r is r with its lowest set bit
// cleared. So every rank has at most log2(ranks) + 1 neighbours and is at most log2(ranks) steps from rank 0. If the
// number of ranks per machine is a power of two, all ranks of a machine are in the subtree of the machine's first rank.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "copus/base/error.h"

namespace copus {

class RankTree {
 public:
  RankTree(int64_t rank, int64_t size) : rank_(rank), size_(size) {
    COPUS_CHECK(rank >= 0 && rank < size, "rank ", rank, " of ", size);
  }

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  bool is_root() const { return rank_ == 0; }

  // The neighbour towards rank 0. Not for rank 0.
  int64_t parent() const { return rank_ & (rank_ - 1); }

  // The first rank after the subtree of this rank.
  int64_t end() const {
    return is_root() ? size_ : static_cast<int64_t>(std::min<uint64_t>(size_, rank_ + (rank_ & -rank_)));
  }

  // The neighbours away from rank 0, in ascending order.
  std::vector<int64_t> children() const {
    std::vector<int64_t> children;
    for (int64_t distance = 1; rank_ + distance < end(); distance *= 2) children.push_back(rank_ + distance);
    return children;
  }

  // The next neighbour on the path to another rank.
  int64_t towards(int64_t other) const {
    if (other < rank_ || other >= end()) return parent();
    return rank_ + static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(other - rank_)));
  }

 private:
  int64_t rank_, size_;
};

}  // namespace copus
