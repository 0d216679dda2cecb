// What each buffer of a new layout needs of the old one, and which ranks have it (for this room's sources only).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "copus/placement/state_placement.h"

namespace copus::relayout {

// Elements of a buffer that have the same holders in the old layout: `replicas` neighbouring tensor-parallel ranks.
struct Need {
  struct Member {
    size_t entry;  // of the shape
    Rectangle old_box;
  };
  int64_t first_tensor = 0, replicas = 1;
  int64_t elements = 0;
  std::vector<Member> members;
  // Where old buffers are cut: for each of the replicas, the data-parallel ranks that have elements of it, and how
  // many.
  std::vector<std::map<int64_t, int64_t>> shares;
};

// Which elements of a new buffer lie in old boxes; the same for all layers and kinds with equal cuts, and remembered.
class Needs {
 public:
  Needs(const StatePlacement& from, const StatePlacement& to) : from_(from), to_(to) {}

  // In the order of fewest holders, so that what many have can come from whom something is taken anyway.
  const std::vector<Need>& of(StateKind kind, ContentKind content, const MeshCoordinates& receiver);

 private:
  std::vector<Need> find(StateKind kind, ContentKind content, const MeshCoordinates& receiver) const;
  void count_shares(ContentKind content, size_t entry, const Region& wanted, Need& need) const;

  const StatePlacement& from_;
  const StatePlacement& to_;
  // Old and new buffers cut?, content, tensor- and data-parallel rank of the receiver.
  std::map<std::tuple<bool, bool, ContentKind, int64_t, int64_t>, std::vector<Need>> remembered_;
};

}  // namespace copus::relayout
