// The communication groups of the ranks of a layout: those of one rank, and all of them.
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

// Lists all groups of more than one rank in which the ranks of a layout communicate; the group of all ranks comes
// first. World::prepare takes this list on every rank before a RankGroups is made.
// `tokens`: tokens of a micro-batch, which determine the size of activations.
std::vector<GroupUse> groups_of(const ModelDescription& model, const ParallelStrategy& strategy, int64_t tokens);

// Whether the data- and tensor-parallel ranks of a pipeline rank exchange parts of matrices (MatrixExchange).
bool exchanges_matrices(const RunConfig& config);

// Takes the model, the exchange of matrices and the tokens of a micro-batch from the run's configuration.
std::vector<GroupUse> groups_of(const RunConfig& config, const Configuration& configuration);

class RankGroups {
 public:
  // Keeps references to `world` and `recorder`. The world must have as many ranks as the strategy (InternalError
  // otherwise).
  RankGroups(World& world, const ParallelStrategy& strategy, StepRecorder& recorder);

  World& world() { return *world_; }
  const Mesh& mesh() const { return mesh_; }
  const MeshCoordinates& here() const { return here_; }

  Communicator& everyone() { return everyone_; }
  Communicator& data() { return *data_; }
  // Subgroups of the data-parallel ranks. `shards`: the ranks over which ZeRO shards one copy of the state. `copies`:
  // the ranks that hold this rank's shard in the other copies.
  Communicator& shards() { return *shards_; }
  Communicator& copies() { return *copies_; }
  Communicator& tensor() { return *tensor_; }
  Communicator& pipeline() { return *pipeline_; }
  // The data- and tensor-parallel ranks of this pipeline rank, in the order of Mesh.
  Communicator& stage();

  // The tensor-parallel ranks that hold the same part of a parameter as this one.
  Communicator& replicas(const Sharding& sharding);
  // The first and the last rank of the pipeline, in this order, which hold the two copies of a tied embedding. Only
  // these two ranks have this group.
  Communicator& tie();

 private:
  // Returns the group of these ranks, made on first use. All uses of the same ranks share it.
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
