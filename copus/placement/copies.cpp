#include "copus/placement/copies.h"

#include "copus/base/error.h"
#include "copus/description/mesh.h"

namespace copus {

bool outlives_any_machine(const ParallelStrategy& strategy, const std::vector<int64_t>& machines) {
  COPUS_CHECK(strategy.world_size() <= std::ssize(machines), strategy.world_size(), " ranks, and ", machines.size(),
              " are on machines");
  const Mesh mesh(strategy);
  const int64_t shards = strategy.cuts_optimizer() ? strategy.zero_shards() : 1;
  for (int64_t rank = 0; rank < strategy.world_size(); ++rank) {
    const MeshCoordinates here = mesh.coordinates(rank);
    if (here.data >= shards) continue;
    // Data-parallel ranks that are a number of shards apart hold the same one.
    bool is_elsewhere = false;
    for (int64_t data = here.data + shards; data < strategy.data_parallel; data += shards) {
      const int64_t other = mesh.rank({.data = data, .tensor = here.tensor, .pipeline = here.pipeline});
      is_elsewhere = is_elsewhere || machines[other] != machines[rank];
    }
    if (!is_elsewhere) return false;
  }
  return true;
}

}  // namespace copus
