// Plans which NCCL communicators a job opens and closes, and in what order. Every rank computes the plan for all ranks
// by itself, with the same result. NCCL requires this: all ranks take part in each split, and a rank with a different
// order would wait forever.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "copus/comm/world.h"

namespace copus {

// The purpose of one NCCL communicator: the collectives of a group, the exchanges of the group, or the messages on one
// link of the group (Route). A message blocks later operations of its communicator until it is received. So if two
// neighbours both send before they receive, each must join its send and the following receive into one operation.
struct NcclUse {
  enum class Kind { collectives, exchanges, messages };

  std::vector<int64_t> group;    // world ranks, in the group's order
  std::vector<int64_t> members;  // of the communicator, in its order: the whole group, or the link's two members
  Kind kind = Kind::collectives;
  int64_t link = -1;  // for messages

  static NcclUse collectives_of(const std::vector<int64_t>& group) { return {group, group, Kind::collectives}; }
  static NcclUse exchanges_of(const std::vector<int64_t>& group) { return {group, group, Kind::exchanges}; }
  static NcclUse messages_of(const std::vector<int64_t>& group, int64_t link) {
    const auto size = static_cast<int64_t>(group.size());
    return {group, {group[link % size], group[(link + 1) % size]}, Kind::messages, link};
  }
  auto operator<=>(const NcclUse&) const = default;
};

// The link for messages between two members of a group, given by their positions.
int64_t link_between(int64_t member, int64_t other, int64_t size);

// "group 0 2 4", "exchanges of 0 2 4", "messages between 0 and 2"
std::string to_string(const NcclUse& use);

// "0 2 4"
std::string list_ranks(const std::vector<int64_t>& ranks);

class NcclPlan {
 public:
  // The device memory that a communicator of each kind takes.
  using Bytes = std::map<NcclUse::Kind, int64_t>;

  // The communicators of a rank may take up to `kept_bytes`, and more only if the groups in use need more.
  NcclPlan(int64_t size, int64_t kept_bytes) : size_(size), kept_bytes_(kept_bytes) {}

  struct Change {
    std::vector<NcclUse> close;              // to be closed in this order, before any is opened
    std::vector<std::vector<NcclUse>> open;  // each item is one split, whose communicators have no rank in common
    std::vector<NcclUse> warm;  // after that, in this order: open communicators to warm up for larger sizes
    bool empty() const { return close.empty() && open.empty() && warm.empty(); }
  };

  // Opens the communicators that these groups need. Other communicators may stay open. The order of the list does not
  // matter, and groups of one rank need none. Throws InternalError if a group has a rank twice or a rank outside the
  // world.
  Change prepare(const std::vector<GroupUse>& groups, const Bytes& bytes);
  // Reverts the opening and the warming up in a change that was not carried out.
  void withdraw(const Change& change);

  // Forgets the communicators that the latest groups do not use, and returns them, to be closed in this order.
  std::vector<NcclUse> drop_unused();

  // The vector size in bytes up to which a communicator for collectives should be warmed up.
  int64_t largest_bytes(const NcclUse& use) const { return used_.at(use).largest_bytes; }

 private:
  struct Used {
    int64_t time = 0;           // when it was last requested
    int64_t largest_bytes = 0;  // of a vector, up to which it is warmed up
  };

  int64_t size_;
  int64_t kept_bytes_;
  int64_t time_ = 0;
  std::map<NcclUse, Used> used_;  // the open communicators
};

}  // namespace copus
