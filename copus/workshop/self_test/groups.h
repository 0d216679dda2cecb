// The groups of all layouts of a job, so that each can be checked: what `copus selftest` goes through.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/comm/world.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// Groups of equal size and spacing that communicate side by side: no rank is in two of them, and some may be in none.
struct GroupFamily {
  std::string kind;  // what layouts use them for: "data", "tensor", "pipeline", "tie", joined by commas
  std::vector<std::vector<int64_t>> groups;

  int64_t members() const { return static_cast<int64_t>(groups.front().size()); }
  // That `rank` is in; null where it is in none.
  const std::vector<int64_t>* group_of(int64_t rank) const;
  // With all kinds of operations, since a check runs every kind in every group.
  std::vector<GroupUse> uses() const;
};

// All ways to write `ranks` as data x tensor x pipeline ranks, in a fixed order.
std::vector<ParallelStrategy> layouts_of(int64_t ranks);

// Every group of two members or more of all these layouts, each once; smaller groups, and closer ranks, come first.
std::vector<GroupFamily> group_families(int64_t ranks);

// "0..7", "0, 4", "1..13 by 4".
std::string describe_ranks(const std::vector<int64_t>& ranks);

}  // namespace copus
