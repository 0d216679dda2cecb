#include "copus/train/step/rank_groups.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "copus/base/error.h"
#include "copus/placement/placed_tensors.h"

namespace copus {

namespace {

MeshCoordinates coordinates_of(const World& world, const Mesh& mesh) {
  COPUS_CHECK(world.size() == mesh.size(), world.size(), " ranks for a layout of ", mesh.size());
  return mesh.coordinates(world.rank());
}

// Returns the tensor-parallel ranks with the same part of a parameter as the rank at these coordinates.
std::vector<int64_t> replicas_of(const Mesh& mesh, MeshCoordinates at, const Sharding& sharding) {
  const int64_t first = sharding.part_of(at.tensor) * sharding.replicas;
  std::vector<int64_t> ranks;
  for (at.tensor = first; at.tensor < first + sharding.replicas; ++at.tensor) ranks.push_back(mesh.rank(at));
  return ranks;
}

// Returns the data-parallel ranks over which ZeRO shards the copy of the rank at these coordinates.
std::vector<int64_t> shards_of(const Mesh& mesh, const ParallelStrategy& strategy, MeshCoordinates at) {
  const int64_t first = at.data - at.data % strategy.zero_shards();
  std::vector<int64_t> ranks;
  for (at.data = first; at.data < first + strategy.zero_shards(); ++at.data) ranks.push_back(mesh.rank(at));
  return ranks;
}

// Returns the data-parallel ranks with the same share as the rank at these coordinates.
std::vector<int64_t> copies_of(const Mesh& mesh, const ParallelStrategy& strategy, MeshCoordinates at) {
  std::vector<int64_t> ranks;
  for (at.data %= strategy.zero_shards(); at.data < strategy.data_parallel; at.data += strategy.zero_shards()) {
    ranks.push_back(mesh.rank(at));
  }
  return ranks;
}

// Returns the ranks on the same pipeline rank as this rank.
std::vector<int64_t> stage_of(const Mesh& mesh, int64_t rank) {
  return mesh.group(rank, {MeshAxis::data, MeshAxis::tensor});
}

// Lists the distinct Shardings of partial parameters, which are the same on all stages, because every stage has layers.
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

// Returns the bytes of the largest gradient bucket of any rank, in fp32, with padding.
int64_t largest_bucket_bytes(const ModelDescription& model, const ParallelStrategy& strategy) {
  constexpr int64_t any_sequence_length = 1;  // affects where a bucket is, but not its size
  const std::vector<LayerRange> stages = balance_stages(model, any_sequence_length, strategy.num_stages());
  int64_t largest = 0;
  for (const PlacedBucket& bucket : place_state(model, strategy, stages, {.slots = {}}).buckets) {
    largest = std::max(largest, std::ranges::max(bucket.sizes));
  }
  return largest * size_of(DataType::float32);
}

// Groups of at least two ranks, without duplicates.
class GroupList {
 public:
  void add(GroupUse use) {
    if (use.ranks.size() == 1) return;
    const auto [place, is_new] = places_.emplace(use.ranks, groups_.size());
    if (is_new) return groups_.push_back(std::move(use));
    GroupUse& group = groups_[place->second];
    group.collectives = group.collectives || use.collectives;
    group.messages = std::max(group.messages, use.messages);
    group.exchanges = group.exchanges || use.exchanges;
    group.collective_bytes = std::max(group.collective_bytes, use.collective_bytes);
  }
  std::vector<GroupUse> take() { return std::move(groups_); }

 private:
  std::vector<GroupUse> groups_;
  std::map<std::vector<int64_t>, size_t> places_;
};

}  // namespace

std::vector<GroupUse> groups_of(const ModelDescription& model, const ParallelStrategy& strategy, int64_t tokens) {
  const Mesh mesh(strategy);
  const int64_t state_bytes = largest_bucket_bytes(model, strategy);
  const int64_t activation_bytes = tokens * model.hidden_size * size_of(DataType::float32);
  const std::vector<Sharding> partial = partial_shardings(model, strategy);
  GroupList groups;
  std::vector<int64_t> everyone(mesh.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  // Numbers on which all ranks agree are in host memory; only moving state is exchanged on the device.
  groups.add({.ranks = everyone, .collectives = false, .exchanges = true});
  for (const int64_t rank : everyone) {
    const bool has_copies = strategy.zero_replicas > 1;
    groups.add({.ranks = mesh.group(rank, {MeshAxis::data}),
                .collectives = !(has_copies && strategy.cuts_optimizer()),
                .collective_bytes = state_bytes});
    if (has_copies) {
      groups.add({.ranks = shards_of(mesh, strategy, mesh.coordinates(rank)), .collective_bytes = state_bytes});
      groups.add({.ranks = copies_of(mesh, strategy, mesh.coordinates(rank)), .collective_bytes = state_bytes});
    }
    groups.add({.ranks = mesh.group(rank, {MeshAxis::tensor}), .collective_bytes = activation_bytes});
    const std::vector<int64_t> pipeline = mesh.group(rank, {MeshAxis::pipeline});
    groups.add({.ranks = pipeline,
                .collectives = false,
                .messages = strategy.virtual_stages > 1 ? GroupUse::Messages::one_way_ring : GroupUse::Messages::line});
    for (const Sharding& sharding : partial)
      groups.add({.ranks = replicas_of(mesh, mesh.coordinates(rank), sharding), .collective_bytes = state_bytes});
    if (model.tie_word_embeddings && pipeline.size() > 1) {
      groups.add({.ranks = {pipeline.front(), pipeline.back()},
                  .messages = GroupUse::Messages::line,
                  .collective_bytes = state_bytes});
    }
  }
  return groups.take();
}

bool exchanges_matrices(const RunConfig& config) {
  return needs_whole_matrices(config.optimizer.kind) || config.noise_scale.dual_interval > 0;
}

std::vector<GroupUse> groups_of(const RunConfig& config, const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  GroupList groups;
  for (GroupUse& use : groups_of(config.model, strategy, configuration.micro_batch * config.train.sequence_length)) {
    groups.add(std::move(use));
  }
  if (exchanges_matrices(config)) {
    const Mesh mesh(strategy);
    for (const int64_t rank : mesh.group(0, {MeshAxis::pipeline})) {
      groups.add({.ranks = stage_of(mesh, rank), .collectives = false, .exchanges = true});
    }
  }
  return groups.take();
}

RankGroups::RankGroups(World& world, const ParallelStrategy& strategy, StepRecorder& recorder)
    : world_(&world),
      recorder_(&recorder),
      mesh_(strategy),
      here_(coordinates_of(world, mesh_)),
      everyone_(world.everyone(), recorder, "everyone"),
      data_(&group(mesh_.group(world.rank(), {MeshAxis::data}), "data")),
      shards_(&group(shards_of(mesh_, strategy, here_), "shards")),
      copies_(&group(copies_of(mesh_, strategy, here_), "copies")),
      tensor_(&group(mesh_.group(world.rank(), {MeshAxis::tensor}), "tensor")),
      pipeline_(&group(mesh_.group(world.rank(), {MeshAxis::pipeline}), "pipeline")) {}

Communicator& RankGroups::replicas(const Sharding& sharding) {
  return group(replicas_of(mesh_, here_, sharding), "replicas");
}

Communicator& RankGroups::stage() { return group(stage_of(mesh_, world_->rank()), "stage"); }

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
