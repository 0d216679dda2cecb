// Finds, for each buffer of a new layout, the elements that it needs, and the ranks of the old layout that hold them
// (only this room's sources include this header).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "copus/placement/state_placement.h"

namespace copus::relayout {

// Needed elements of a buffer that the same `replicas` neighbouring tensor-parallel ranks held in the old layout.
struct Need {
  struct Member {
    size_t entry;  // index into the entries of the old bucket's shape
    Stretch part;  // range of the old box, row-major
  };
  int64_t first_tensor = 0, replicas = 1;
  int64_t elements = 0;
  std::vector<Member> members;
  // Only if old buffers are sharded: for each replica, the shards that hold needed elements, with the number of these
  // elements in each shard.
  std::vector<std::map<int64_t, int64_t>> shares;
};

// Finds which ranges of old buffers hold the elements of a new buffer. Results are cached: layers of one kind share a
// result, and so do kinds of state with the same sharding.
class Needs {
 public:
  // `one_share`: whether every need must lie within a single shard of each replica. Each need can then be read from a
  // different replica.
  Needs(const StatePlacement& from, const StatePlacement& to, bool one_share)
      : from_(from), to_(to), one_share_(one_share) {}

  // Returns a buffer's needs, sorted by the number of holders, fewest first. Needs with many holders are then served by
  // ranks that already send to this buffer.
  const std::vector<Need>& of(StateKind kind, ContentKind content, const MeshCoordinates& receiver);

 private:
  std::vector<Need> find(StateKind kind, ContentKind content, const MeshCoordinates& receiver) const;
  std::vector<Stretch> parts_in_one_share(ContentKind content, size_t entry, int64_t first_tensor,
                                          int64_t replicas) const;
  void count_shares(ContentKind content, size_t entry, const Region& wanted, Need& need) const;

  const StatePlacement& from_;
  const StatePlacement& to_;
  bool one_share_;
  // By whether old and new buffers are sharded, content, and the receiver's tensor- and data-parallel rank.
  std::map<std::tuple<bool, bool, ContentKind, int64_t, int64_t>, std::vector<Need>> remembered_;
};

}  // namespace copus::relayout
