#include "copus/placement/copies.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "copus/base/error.h"
#include "copus/description/mesh.h"

namespace copus {

namespace {

// Returns `count` members, machine by machine in the order in which machines first occur, with at most `most` members
// per machine. Empty if there are too few.
std::vector<int64_t> members_by_machine(const std::vector<int64_t>& machines, int64_t count, int64_t most) {
  std::vector<int64_t> order, members;
  for (const int64_t machine : machines) {
    if (std::ranges::find(order, machine) == order.end()) order.push_back(machine);
  }
  for (const int64_t machine : order) {
    int64_t left = most;
    for (int64_t member = 0; member < std::ssize(machines) && left > 0; ++member) {
      if (machines[member] != machine) continue;
      members.push_back(member);
      --left;
    }
  }
  if (std::ssize(members) < count) return {};
  members.resize(count);
  return members;
}

}  // namespace

bool outlives_any_machine(const ParallelStrategy& strategy, const std::vector<int64_t>& machines) {
  COPUS_CHECK(strategy.world_size() <= std::ssize(machines), strategy.world_size(), " ranks, and ", machines.size(),
              " are on machines");
  const Mesh mesh(strategy);
  const int64_t shards = strategy.optimizer_shards();
  for (int64_t rank = 0; rank < strategy.world_size(); ++rank) {
    const MeshCoordinates here = mesh.coordinates(rank);
    if (here.data >= shards) continue;
    // Data-parallel ranks at distances that are multiples of `shards` hold the same shard.
    bool is_elsewhere = false;
    for (int64_t data = here.data + shards; data < strategy.data_parallel; data += shards) {
      const int64_t other = mesh.rank({.data = data, .tensor = here.tensor, .pipeline = here.pipeline});
      is_elsewhere = is_elsewhere || machines[other] != machines[rank];
    }
    if (!is_elsewhere) return false;
  }
  return true;
}

// Ranks that hold the same state form a group. Members are assigned to the groups in turn, machine by machine. With n
// ranks in g groups, a whole group ends up on one machine only if that machine has more than n - g members; then no
// assignment avoids this.
std::optional<std::vector<int64_t>> members_that_outlive_any_machine(const ParallelStrategy& strategy,
                                                                     const std::vector<int64_t>& machines) {
  const int64_t ranks = strategy.world_size();
  COPUS_CHECK(ranks <= std::ssize(machines), ranks, " ranks, and ", machines.size(), " members");
  std::vector<int64_t> chosen(ranks);
  std::iota(chosen.begin(), chosen.end(), 0);
  if (outlives_any_machine(strategy, machines)) return chosen;
  const int64_t shards = strategy.optimizer_shards(), tensor = strategy.tensor_parallel;
  const int64_t groups = ranks / (strategy.data_parallel / shards);
  const std::vector<int64_t> members = members_by_machine(machines, ranks, ranks - groups);
  if (members.empty()) return std::nullopt;
  const Mesh mesh(strategy);
  for (int64_t i = 0; i < ranks; ++i) {
    const int64_t copy = i / groups, group = i % groups;
    const int64_t shard = group / tensor % shards, stage = group / tensor / shards;
    chosen[mesh.rank({.data = copy * shards + shard, .tensor = group % tensor, .pipeline = stage})] = members[i];
  }
  return chosen;
}

}  // namespace copus
