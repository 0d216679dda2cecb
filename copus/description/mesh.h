// The mesh of ranks: every rank has one coordinate on each axis. Axes with more communication vary faster:
// tensor-parallel ranks are neighbours, then come data-parallel ranks, then pipeline stages. This is Megatron-LM's
// order: rank = (pipeline * d + data) * t + tensor.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

enum class MeshAxis { data, tensor, pipeline };

struct MeshCoordinates {
  int64_t data = 0;
  int64_t tensor = 0;
  int64_t pipeline = 0;
  bool operator==(const MeshCoordinates&) const = default;
};

// An axis of the mesh. configuration_fields.h has the names of its degree.
struct MeshAxisInfo {
  MeshAxis axis;
  const char* name;  // name of the groups along the axis
  int64_t ParallelStrategy::* degree;
  int64_t MeshCoordinates::* coordinate;
};

// All axes, from the fastest-varying (neighbouring ranks) to the slowest.
inline constexpr std::array<MeshAxisInfo, 3> mesh_axes = {{
    {MeshAxis::tensor, "tensor", &ParallelStrategy::tensor_parallel, &MeshCoordinates::tensor},
    {MeshAxis::data, "data", &ParallelStrategy::data_parallel, &MeshCoordinates::data},
    {MeshAxis::pipeline, "pipeline", &ParallelStrategy::pipeline_parallel, &MeshCoordinates::pipeline},
}};

class Mesh {
 public:
  explicit Mesh(const ParallelStrategy& strategy);

  int64_t size() const;
  MeshCoordinates coordinates(int64_t rank) const;
  int64_t rank(const MeshCoordinates& coordinates) const;

  // Returns the ranks that differ from `rank` at most in this axis, in the order of their coordinate.
  std::vector<int64_t> group(int64_t rank, MeshAxis axis) const;

 private:
  std::array<int64_t, mesh_axes.size()> degrees_;  // in the order of mesh_axes
};

}  // namespace copus
