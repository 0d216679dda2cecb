// Collects, by process and round, the copies that deliver a buffer's needed elements (only this room's sources include
// this header).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "copus/placement/relayout_needs.h"
#include "copus/placement/relayout_plan.h"
#include "copus/placement/state_placement.h"

namespace copus::relayout {

// Elements that a process takes from another process, or from itself, for one buffer.
struct Delivery {
  size_t round;
  int64_t content;
  StateKind kind;
  int64_t sender, receiver;
  int64_t from_bucket, to_bucket;
  int64_t elements;
  const Need* need;
  int64_t sender_tensor, receiver_tensor;  // tensor-parallel ranks in the old and in the new layout
  Stretch from_stretch, to_stretch;        // ranges of the buckets in the two buffers
};

// Collects the receives or sends of one process in one round, by peer, buckets and kind.
class Transfers {
 public:
  Transfers(const StatePlacement& from, const StatePlacement& to) : from_(&from), to_(&to) {}

  void add(const Delivery& delivery);
  std::vector<Transfer> take();

 private:
  const StatePlacement* from_;
  const StatePlacement* to_;
  std::map<std::tuple<int64_t, int64_t, StateKind, int64_t>, Transfer> transfers_;
};

}  // namespace copus::relayout
