// The communication groups of a layout: those of one rank, and all of them.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "copus/comm/world.h"
#include "copus/config/run_config.h"
#include "copus/description/mesh.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/placement/sharding.h"
#include "copus/train/recording/recorded_communicator.h"

namespace copus {

// Lists all groups of at least two ranks in which a layout's ranks communicate, the group of all ranks first. Every
// rank passes this list to World::prepare before it makes a RankGroups.
// `tokens`: tokens per micro-batch, which determine the size of activations.
std::vector<GroupUse> groups_of(const ModelDescription& model, const ParallelStrategy& strategy, int64_t tokens);

// Returns whether the ranks of a pipeline rank exchange parts of matrices (MatrixExchange).
bool exchanges_matrices(const RunConfig& config);

// Like the above, for the run's model, exchange of matrices and micro-batch.
std::vector<GroupUse> groups_of(const RunConfig& config, const Configuration& configuration);

class RankGroups {
 public:
  // `world` and `recorder` must outlive this object. Throws InternalError unless the world has as many ranks as the
  // strategy.
  RankGroups(World& world, const ParallelStrategy& strategy, StepRecorder& recorder);

  World& world() { return *world_; }
  const Mesh& mesh() const { return mesh_; }
  const MeshCoordinates& here() const { return here_; }

  Communicator& everyone() { return everyone_; }
  Communicator& data() { return *data_; }
  // Subgroups of the data-parallel ranks. `shards`: the ranks over which ZeRO shards this rank's copy of the state.
  // `copies`: the ranks with this rank's shard in all copies.
  Communicator& shards() { return *shards_; }
  Communicator& copies() { return *copies_; }
  Communicator& tensor() { return *tensor_; }
  Communicator& pipeline() { return *pipeline_; }
  // All ranks of this pipeline rank, in the order of Mesh.
  Communicator& stage();

  // The tensor-parallel ranks with the same part of a parameter as this rank.
  Communicator& replicas(const Sharding& sharding);
  // The first and the last rank of the pipeline, in this order, which hold the two copies of a tied embedding. Exists
  // only on these two ranks.
  Communicator& tie();

 private:
  // Returns the group of these ranks. Creates it on first use, and shares it between all uses.
  Communicator& group(const std::vector<int64_t>& ranks, const char* label);

  World* world_;
  StepRecorder* recorder_;
  Mesh mesh_;
  MeshCoordinates here_;
  std::map<std::vector<int64_t>, std::unique_ptr<RecordedCommunicator>> groups_;
  RecordedCommunicator everyone_;
  Communicator *data_, *shards_, *copies_, *tensor_, *pipeline_;
};

}  // namespace copus
