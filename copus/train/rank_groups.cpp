#include "copus/train/rank_groups.h"

#include <numeric>
#include <set>

#include "copus/base/error.h"

namespace copus {

namespace {

MeshCoordinates coordinates_of(const World& world, const Mesh& mesh) {
  COPUS_CHECK(world.size() == mesh.size(), world.size(), " ranks for a layout of ", mesh.size());
  return mesh.coordinates(world.rank());
}

// The tensor-parallel ranks that hold the same part of a parameter as the rank at these coordinates.
std::vector<int64_t> replicas_of(const Mesh& mesh, MeshCoordinates at, const Sharding& sharding) {
  const int64_t first = sharding.part_of(at.tensor) * sharding.replicas;
  std::vector<int64_t> ranks;
  for (at.tensor = first; at.tensor < first + sharding.replicas; ++at.tensor) ranks.push_back(mesh.rank(at));
  return ranks;
}

// The data-parallel ranks of the rank at these coordinates, over which ZeRO cuts one copy.
std::vector<int64_t> shards_of(const Mesh& mesh, const ParallelStrategy& strategy, MeshCoordinates at) {
  const int64_t first = at.data - at.data % strategy.zero_shards();
  std::vector<int64_t> ranks;
  for (at.data = first; at.data < first + strategy.zero_shards(); ++at.data) ranks.push_back(mesh.rank(at));
  return ranks;
}

// Those that hold the same share.
std::vector<int64_t> copies_of(const Mesh& mesh, const ParallelStrategy& strategy, MeshCoordinates at) {
  std::vector<int64_t> ranks;
  for (at.data %= strategy.zero_shards(); at.data < strategy.data_parallel; at.data += strategy.zero_shards()) {
    ranks.push_back(mesh.rank(at));
  }
  return ranks;
}

// Lists the distinct ways in which parameters are partial, on whichever stage: every stage has layers.
std::vector<Sharding> partial_shardings(const ModelDescription& model, const ParallelStrategy& strategy) {
  Placement placement = whole_model(model);
  placement.strategy = strategy;
  std::vector<Sharding> shardings;
  std::set<int64_t> replicas;
  for (const ParameterInfo& parameter : list_parameters(model)) {
    const Sharding sharding = shard(model, placement, parameter);
    if (sharding.partial && replicas.insert(sharding.replicas).second) shardings.push_back(sharding);
  }
  return shardings;
}

// A list of groups that holds each group once and omits those of one rank.
class GroupList {
 public:
  void add(std::vector<int64_t> ranks, bool neighbours_message) {
    if (ranks.size() == 1) return;
    const auto [place, is_new] = places_.emplace(ranks, groups_.size());
    if (is_new) groups_.push_back({std::move(ranks), false});
    GroupUse& group = groups_[place->second];
    group.neighbours_message = group.neighbours_message || neighbours_message;
  }
  std::vector<GroupUse> take() { return std::move(groups_); }

 private:
  std::vector<GroupUse> groups_;
  std::map<std::vector<int64_t>, size_t> places_;
};

}  // namespace

std::vector<GroupUse> groups_of(const ModelDescription& model, const ParallelStrategy& strategy) {
  const Mesh mesh(strategy);
  const std::vector<Sharding> partial = partial_shardings(model, strategy);
  GroupList groups;
  std::vector<int64_t> everyone(mesh.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  groups.add(everyone, false);
  for (const int64_t rank : everyone) {
    groups.add(mesh.group(rank, MeshAxis::data), false);
    if (strategy.zero_replicas > 1) {
      groups.add(shards_of(mesh, strategy, mesh.coordinates(rank)), false);
      groups.add(copies_of(mesh, strategy, mesh.coordinates(rank)), false);
    }
    groups.add(mesh.group(rank, MeshAxis::tensor), false);
    const std::vector<int64_t> pipeline = mesh.group(rank, MeshAxis::pipeline);
    groups.add(pipeline, true);
    for (const Sharding& sharding : partial) groups.add(replicas_of(mesh, mesh.coordinates(rank), sharding), false);
    if (model.tie_word_embeddings && pipeline.size() > 1) groups.add({pipeline.front(), pipeline.back()}, true);
  }
  return groups.take();
}

RankGroups::RankGroups(World& world, const ParallelStrategy& strategy, StepRecorder& recorder)
    : world_(&world),
      recorder_(&recorder),
      mesh_(strategy),
      here_(coordinates_of(world, mesh_)),
      everyone_(world.everyone(), recorder, "everyone"),
      data_(&group(mesh_.group(world.rank(), MeshAxis::data), "data")),
      shards_(&group(shards_of(mesh_, strategy, here_), "shards")),
      copies_(&group(copies_of(mesh_, strategy, here_), "copies")),
      tensor_(&group(mesh_.group(world.rank(), MeshAxis::tensor), "tensor")),
      pipeline_(&group(mesh_.group(world.rank(), MeshAxis::pipeline), "pipeline")) {}

Communicator& RankGroups::replicas(const Sharding& sharding) {
  return group(replicas_of(mesh_, here_, sharding), "replicas");
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
