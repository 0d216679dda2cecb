#include "copus/train/rank_groups.h"

#include "copus/base/error.h"

namespace copus {

namespace {

MeshCoordinates coordinates_of(const World& world, const Mesh& mesh) {
  COPUS_CHECK(world.size() == mesh.size(), world.size(), " ranks for a layout of ", mesh.size());
  return mesh.coordinates(world.rank());
}

}  // namespace

RankGroups::RankGroups(World& world, const ParallelStrategy& strategy, StepRecorder& recorder)
    : world_(&world),
      recorder_(&recorder),
      mesh_(strategy),
      here_(coordinates_of(world, mesh_)),
      everyone_(world.everyone(), recorder, "everyone"),
      data_(&group(mesh_.group(world.rank(), MeshAxis::data), "data")),
      tensor_(&group(mesh_.group(world.rank(), MeshAxis::tensor), "tensor")),
      pipeline_(&group(mesh_.group(world.rank(), MeshAxis::pipeline), "pipeline")) {}

Communicator& RankGroups::replicas(const Sharding& sharding) {
  MeshCoordinates at = here_;
  const int64_t first = sharding.part_of(here_.tensor) * sharding.replicas;
  std::vector<int64_t> ranks;
  for (at.tensor = first; at.tensor < first + sharding.replicas; ++at.tensor) ranks.push_back(mesh_.rank(at));
  return group(ranks, "replicas");
}

Communicator& RankGroups::tie() {
  const std::vector<int64_t>& pipeline = pipeline_->ranks();
  return group({pipeline.front(), pipeline.back()}, "tie");
}

Communicator& RankGroups::group(const std::vector<int64_t>& ranks, const char* label) {
  std::unique_ptr<RecordedCommunicator>& found = groups_[ranks];
  if (!found) found = std::make_unique<RecordedCommunicator>(world_->group(ranks), *recorder_, label);
  return *found;
}

}  // namespace copus
