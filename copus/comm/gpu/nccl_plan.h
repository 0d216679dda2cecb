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

// What one communicator of NCCL's is for: the collectives of a group, the exchanges of the group, or the messages of
// one link of the group (Route). A message blocks later operations of its communicator until it is received. So
// neighbours that both send first have to make a send and the receive behind it one operation.
struct NcclUse {
  enum class Kind { collectives, exchanges, messages };

  std::vector<int64_t> group;    // world ranks, in the group's order
  std::vector<int64_t> members;  // of the communicator, in its order: those of the group, or the two of the link
  Kind kind = Kind::collectives;
  int64_t link = -1;  // of messages

  static NcclUse collectives_of(const std::vector<int64_t>& group) { return {group, group, Kind::collectives}; }
  static NcclUse exchanges_of(const std::vector<int64_t>& group) { return {group, group, Kind::exchanges}; }
  static NcclUse messages_of(const std::vector<int64_t>& group, int64_t link) {
    const auto size = static_cast<int64_t>(group.size());
    return {group, {group[link % size], group[(link + 1) % size]}, Kind::messages, link};
  }
  auto operator<=>(const NcclUse&) const = default;
};

// The link that carries a message between two members of a group, given by their places in it.
int64_t link_between(int64_t member, int64_t other, int64_t size);

// "group 0 2 4", "exchanges of 0 2 4", "messages between 0 and 2"
std::string to_string(const NcclUse& use);

// "0 2 4"
std::string list_ranks(const std::vector<int64_t>& ranks);

class NcclPlan {
 public:
  // The device memory that a communicator of each kind takes.
  using Bytes = std::map<NcclUse::Kind, int64_t>;

  // The communicators of each of `size` ranks take at most `kept_bytes`, or as much as the groups in use need.
  NcclPlan(int64_t size, int64_t kept_bytes) : size_(size), kept_bytes_(kept_bytes) {}

  struct Change {
    std::vector<NcclUse> close;              // in this order, before anything is opened
    std::vector<std::vector<NcclUse>> open;  // each is one split, whose communicators have no rank in common
    std::vector<NcclUse> warm;  // after that, in this order: what is open, and to be warmed up to larger sizes
    bool empty() const { return close.empty() && open.empty() && warm.empty(); }
  };

  // Opens what these groups need. What is open already may stay so. The order of the list does not matter, and groups
  // of one need nothing. Throws InternalError for a group with a rank twice, or with one beyond the world.
  Change prepare(const std::vector<GroupUse>& groups, const Bytes& bytes);
  // Undoes the opening and the warming of a change, which has not been made.
  void withdraw(const Change& change);

  // Forgets what the latest groups do not use, and returns it: to be closed in this order.
  std::vector<NcclUse> drop_unused();

  // The size that a communicator of collectives is to be warmed up to.
  int64_t largest_bytes(const NcclUse& use) const { return used_.at(use).largest_bytes; }

 private:
  struct Used {
    int64_t time = 0;           // when it was last asked for
    int64_t largest_bytes = 0;  // of a vector that it is warmed up to
  };

  int64_t size_;
  int64_t kept_bytes_;
  int64_t time_ = 0;
  std::map<NcclUse, Used> used_;  // what is open
};

}  // namespace copus
