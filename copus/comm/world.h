// All ranks of a job as one of them sees it: who it is, groups to communicate in, health and clock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/comm/health.h"
#include "copus/comm/rank_clock.h"

namespace copus {

// A group of ranks that a layout communicates in.
struct GroupUse {
  std::vector<int64_t> ranks;       // in the group's order
  bool neighbours_message = false;  // each sends messages to the next and the previous one, the last being next to the
                                    // first
};

class World {
 public:
  virtual ~World() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  // The communicator of an ordered list of distinct world ranks, this rank among them; made at the first call, and then
  // kept. Ranks may ask for their groups in different orders: making one waits for nobody.
  virtual Communicator& group(const std::vector<int64_t>& ranks) = 0;
  Communicator& everyone();

  // Every rank calls it between two steps, when nothing is under way, with the same list of the groups of all ranks,
  // before it asks for its own of them. Where ranks connect by working together (NCCL) this is when they do so, and
  // when groups that are not in the list may be closed; elsewhere there is nothing to do.
  virtual void prepare(const std::vector<GroupUse>& /*groups*/) {}

  // Memory of this rank's device that its connections take.
  virtual int64_t communicator_bytes() const { return 0; }

  virtual Health& health() = 0;
  virtual RankClock& clock() = 0;

 protected:
  // This rank's place in a group that it asks for. InternalError where it has none, or the list is no group's.
  int64_t place_in(const std::vector<int64_t>& ranks) const;
};

// How long a wait may last before it counts as a failure of those that are missing.
inline constexpr double default_wait_seconds = 600;

}  // namespace copus
