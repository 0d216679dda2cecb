// Which of NCCL's communicators a job opens and closes, and in what order. Every rank works it out alone, for the
// communicators of all ranks, and comes to the same result. NCCL needs that: a split takes all ranks at once, and a
// rank that takes part in another order waits for ever.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "copus/comm/world.h"

namespace copus {

// What one communicator of NCCL's is for: the collectives of a group, or the messages of the group from one member to
// another. A message blocks what comes after it on its communicator until it is received. So every direction has a
// communicator of its own: otherwise two neighbours that both send first would wait for each other for ever.
struct NcclUse {
  std::vector<int64_t> group;    // world ranks, in the group's order
  std::vector<int64_t> members;  // of the communicator, in its order: those of the group, or sender and receiver
  bool messages = false;

  static NcclUse collectives_of(const std::vector<int64_t>& group) { return {group, group, false}; }
  static NcclUse messages_of(const std::vector<int64_t>& group, int64_t from, int64_t to) {
    return {group, {from, to}, true};
  }
  auto operator<=>(const NcclUse&) const = default;
};

// "group 0 2 4", "messages from 0 to 2"
std::string to_string(const NcclUse& use);

// "0 2 4"
std::string list_ranks(const std::vector<int64_t>& ranks);

class NcclPlan {
 public:
  // Each of `size` ranks keeps at most `kept` communicators, or as many as the groups in use need.
  NcclPlan(int64_t size, int64_t kept) : size_(size), kept_(kept) {}

  struct Change {
    std::vector<NcclUse> close;              // in this order, before anything is opened
    std::vector<std::vector<NcclUse>> open;  // each is one split, whose communicators have no rank in common
  };

  // Opens what these groups need. What is open already may stay so. The order of the list does not matter, and groups
  // of one need nothing. Throws InternalError for a group with a rank twice, or with one beyond the world.
  Change prepare(const std::vector<GroupUse>& groups);

 private:
  int64_t size_;
  int64_t kept_;
  int64_t time_ = 0;
  std::map<NcclUse, int64_t> used_;  // what is open, and when it was last asked for
};

}  // namespace copus
