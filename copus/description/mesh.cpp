#include "copus/description/mesh.h"

#include "copus/base/error.h"

namespace copus {

Mesh::Mesh(const ParallelStrategy& strategy)
    : data_(strategy.data_parallel), tensor_(strategy.tensor_parallel), pipeline_(strategy.pipeline_parallel) {
  COPUS_CHECK(data_ >= 1 && tensor_ >= 1 && pipeline_ >= 1);
}

MeshCoordinates Mesh::coordinates(int64_t rank) const {
  COPUS_CHECK(rank >= 0 && rank < size(), rank, " of ", size());
  return {.data = rank / tensor_ % data_, .tensor = rank % tensor_, .pipeline = rank / (tensor_ * data_)};
}

int64_t Mesh::rank(const MeshCoordinates& coordinates) const {
  return (coordinates.pipeline * data_ + coordinates.data) * tensor_ + coordinates.tensor;
}

std::vector<int64_t> Mesh::group(int64_t rank, MeshAxis axis) const {
  MeshCoordinates at = coordinates(rank);
  int64_t& coordinate = axis == MeshAxis::data ? at.data : axis == MeshAxis::tensor ? at.tensor : at.pipeline;
  const int64_t count = axis == MeshAxis::data ? data_ : axis == MeshAxis::tensor ? tensor_ : pipeline_;
  std::vector<int64_t> ranks;
  for (coordinate = 0; coordinate < count; ++coordinate) ranks.push_back(this->rank(at));
  return ranks;
}

}  // namespace copus
