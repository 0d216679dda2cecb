// The groups of ranks that one rank of a layout communicates in.
#pragma once

#include "copus/comm/world.h"
#include "copus/layout/sharding.h"
#include "copus/strategy/mesh.h"

namespace copus {

class RankGroups {
 public:
  // Refers to `world` for its whole life, whose size is that of the strategy (InternalError otherwise).
  RankGroups(World& world, const ParallelStrategy& strategy);

  World& world() const { return *world_; }
  const Mesh& mesh() const { return mesh_; }
  const MeshCoordinates& here() const { return here_; }

  Communicator& everyone() const { return world_->everyone(); }
  Communicator& data() const { return axis(MeshAxis::data); }
  Communicator& tensor() const { return axis(MeshAxis::tensor); }
  Communicator& pipeline() const { return axis(MeshAxis::pipeline); }

  // The tensor-parallel ranks that hold the same part of a parameter as this one.
  Communicator& replicas(const Sharding& sharding) const;
  // The first and the last rank of the pipeline, in this order: they hold the two copies of a tied embedding. Only on
  // these two.
  Communicator& tie() const;

 private:
  Communicator& axis(MeshAxis axis) const { return world_->group(mesh_.group(world_->rank(), axis)); }

  World* world_;
  Mesh mesh_;
  MeshCoordinates here_;
};

}  // namespace copus
