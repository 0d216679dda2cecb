#include "copus/description/mesh.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "copus/base/error.h"

namespace copus {

Mesh::Mesh(const ParallelStrategy& strategy) {
  for (size_t i = 0; i < mesh_axes.size(); ++i) {
    degrees_[i] = strategy.*mesh_axes[i].degree;
    COPUS_CHECK(degrees_[i] >= 1, degrees_[i], " ranks along the axis ", mesh_axes[i].name);
  }
}

int64_t Mesh::size() const {
  return std::accumulate(degrees_.begin(), degrees_.end(), int64_t{1}, std::multiplies<>());
}

MeshCoordinates Mesh::coordinates(int64_t rank) const {
  COPUS_CHECK(rank >= 0 && rank < size(), rank, " of ", size());
  MeshCoordinates at;
  for (size_t i = 0; i < mesh_axes.size(); ++i) {
    at.*mesh_axes[i].coordinate = rank % degrees_[i];
    rank /= degrees_[i];
  }
  return at;
}

int64_t Mesh::rank(const MeshCoordinates& coordinates) const {
  int64_t rank = 0;
  for (size_t i = mesh_axes.size(); i-- > 0;) rank = rank * degrees_[i] + coordinates.*mesh_axes[i].coordinate;
  return rank;
}

std::vector<int64_t> Mesh::group(int64_t rank, MeshAxis axis) const {
  const auto* const along = std::ranges::find(mesh_axes, axis, &MeshAxisInfo::axis);
  MeshCoordinates at = coordinates(rank);
  int64_t& coordinate = at.*along->coordinate;
  std::vector<int64_t> ranks;
  for (coordinate = 0; coordinate < degrees_[along - mesh_axes.begin()]; ++coordinate) ranks.push_back(this->rank(at));
  return ranks;
}

}  // namespace copus
