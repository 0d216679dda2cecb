// Finds which elements each buffer of a new layout needs from the old layout, and which ranks of the old layout hold
// them (only this room's sources include this header).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "copus/placement/state_placement.h"

namespace copus::relayout {

// Elements of a buffer with the same holders in the old layout: `replicas` neighbouring tensor-parallel ranks.
struct Need {
  struct Member {
    size_t entry;  // index into the entries of the bucket's shape
    Stretch part;  // the needed elements of the old box, row-major
  };
  int64_t first_tensor = 0, replicas = 1;
  int64_t elements = 0;
  std::vector<Member> members;
  // For every replica, the shards of the old layout that hold the elements, with the number of elements in each. Only
  // if old buffers are sharded.
  std::vector<std::map<int64_t, int64_t>> shares;
};

// Finds which elements of a new buffer are in which old boxes. The result is the same for every layer, and for kinds of
// state that are sharded equally, and is cached.
class Needs {
 public:
  // `one_share`: whether a need must be in one share of every replica, so that each share can come from another copy.
  Needs(const StatePlacement& from, const StatePlacement& to, bool one_share)
      : from_(from), to_(to), one_share_(one_share) {}

  // Returns the needs of a buffer, starting with those that have the fewest holders. Needs with many holders can then
  // be served by ranks that already send to this buffer.
  const std::vector<Need>& of(StateKind kind, ContentKind content, const MeshCoordinates& receiver);

 private:
  std::vector<Need> find(StateKind kind, ContentKind content, const MeshCoordinates& receiver) const;
  std::vector<Stretch> parts_in_one_share(ContentKind content, size_t entry, int64_t first_tensor,
                                          int64_t replicas) const;
  void count_shares(ContentKind content, size_t entry, const Region& wanted, Need& need) const;

  const StatePlacement& from_;
  const StatePlacement& to_;
  bool one_share_;
  // The key: whether old and new buffers are sharded; content; tensor- and data-parallel rank of the receiver.
  std::map<std::tuple<bool, bool, ContentKind, int64_t, int64_t>, std::vector<Need>> remembered_;
};

}  // namespace copus::relayout
