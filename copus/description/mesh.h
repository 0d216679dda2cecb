// The mesh of ranks: every rank has one coordinate on each axis of mesh_axes. Axes with more communication vary faster:
// tensor-parallel ranks are neighbours, then come data-parallel ranks, then pipeline stages. This is Megatron-LM's
// order: rank = (pipeline * d + data) * t + tensor.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

class Mesh {
 public:
  explicit Mesh(const ParallelStrategy& strategy);

  int64_t size() const;
  MeshCoordinates coordinates(int64_t rank) const;
  int64_t rank(const MeshCoordinates& coordinates) const;

  // Returns the ranks that differ from `rank` at most along these axes, in increasing order.
  std::vector<int64_t> group(int64_t rank, std::initializer_list<MeshAxis> axes) const;

 private:
  ParallelStrategy strategy_;
};

}  // namespace copus
