// The groups of all layouts of a job, which `copus selftest` checks one by one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/comm/world.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// Groups of equal size and spacing that communicate at the same time. Each rank is in at most one of them.
struct GroupFamily {
  std::string kind;  // the purposes of the groups in layouts: "data", "tensor", "pipeline", "tie", joined by commas
  std::vector<std::vector<int64_t>> groups;

  int64_t members() const { return static_cast<int64_t>(groups.front().size()); }
  // The group that `rank` is in; null if it is in none.
  const std::vector<int64_t>* group_of(int64_t rank) const;
  // Returns uses that cover all kinds of operations, because a check runs every kind in every group.
  std::vector<GroupUse> uses() const;
};

// All ways to arrange `ranks` ranks as data x tensor x pipeline ranks, in a fixed order.
std::vector<ParallelStrategy> layouts_of(int64_t ranks);

// All groups of at least two members in these layouts, without duplicates; smaller groups and closer ranks come first.
std::vector<GroupFamily> group_families(int64_t ranks);

// "0..7", "0, 4", "1..13 by 4".
std::string describe_ranks(const std::vector<int64_t>& ranks);

}  // namespace copus
