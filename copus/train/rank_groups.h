// The groups of ranks that the ranks of a layout communicate in: one rank's, and all of them.
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
#include "copus/train/recorded_communicator.h"

namespace copus {

// Lists the groups of more than one rank that the ranks of a layout communicate in, everyone's first. World::prepare
// takes this list on every rank before a RankGroups is made.
// `tokens`: of a micro-batch, which decides how large activations are.
std::vector<GroupUse> groups_of(const ModelDescription& model, const ParallelStrategy& strategy, int64_t tokens);

// Of a run's model and sequences.
std::vector<GroupUse> groups_of(const RunConfig& config, const Configuration& configuration);

class RankGroups {
 public:
  // Refers to `world` and `recorder` for its whole life. The world has as many ranks as the strategy (InternalError
  // otherwise).
  RankGroups(World& world, const ParallelStrategy& strategy, StepRecorder& recorder);

  World& world() { return *world_; }
  const Mesh& mesh() const { return mesh_; }
  const MeshCoordinates& here() const { return here_; }

  Communicator& everyone() { return everyone_; }
  Communicator& data() { return *data_; }
  // Of the data-parallel ranks: those over which ZeRO cuts one copy of the state, and those that hold this rank's share
  // of the other copies.
  Communicator& shards() { return *shards_; }
  Communicator& copies() { return *copies_; }
  Communicator& tensor() { return *tensor_; }
  Communicator& pipeline() { return *pipeline_; }

  // The tensor-parallel ranks that hold the same part of a parameter as this one.
  Communicator& replicas(const Sharding& sharding);
  // The first and the last rank of the pipeline, in this order: they hold the two copies of a tied embedding. Exists on
  // these two alone.
  Communicator& tie();

 private:
  // Returns the group of these ranks; it is kept, and all uses of the same ranks share it.
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
