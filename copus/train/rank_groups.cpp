#include "copus/train/rank_groups.h"

#include <vector>

#include "copus/base/error.h"

namespace copus {

namespace {

MeshCoordinates coordinates_of(const World& world, const Mesh& mesh) {
  COPUS_CHECK(world.size() == mesh.size(), world.size(), " ranks for a layout of ", mesh.size());
  return mesh.coordinates(world.rank());
}

}  // namespace

RankGroups::RankGroups(World& world, const ParallelStrategy& strategy)
    : world_(&world), mesh_(strategy), here_(coordinates_of(world, mesh_)) {}

Communicator& RankGroups::replicas(const Sharding& sharding) const {
  MeshCoordinates at = here_;
  const int64_t first = sharding.part_of(here_.tensor) * sharding.replicas;
  std::vector<int64_t> ranks;
  for (at.tensor = first; at.tensor < first + sharding.replicas; ++at.tensor) ranks.push_back(mesh_.rank(at));
  return world_->group(ranks);
}

Communicator& RankGroups::tie() const {
  const std::vector<int64_t> pipeline = mesh_.group(world_->rank(), MeshAxis::pipeline);
  return world_->group({pipeline.front(), pipeline.back()});
}

}  // namespace copus
