#include "copus/description/mesh.h"

#include <algorithm>
#include <array>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr auto by_distance = [] {
  auto axes = mesh_axes;
  std::ranges::sort(axes, {}, &MeshAxisInfo::distance);
  return axes;
}();

}  // namespace

Mesh::Mesh(const ParallelStrategy& strategy) : strategy_(strategy) {
  for (const MeshAxisInfo& axis : mesh_axes) {
    COPUS_CHECK(strategy.*axis.degree >= 1, strategy.*axis.degree, " ranks along the axis ", axis.name);
  }
}

int64_t Mesh::size() const { return strategy_.world_size(); }

MeshCoordinates Mesh::coordinates(int64_t rank) const {
  COPUS_CHECK(rank >= 0 && rank < size(), rank, " of ", size());
  MeshCoordinates at;
  for (const MeshAxisInfo& axis : by_distance) {
    at.*axis.coordinate = rank % (strategy_.*axis.degree);
    rank /= strategy_.*axis.degree;
  }
  return at;
}

int64_t Mesh::rank(const MeshCoordinates& coordinates) const {
  int64_t rank = 0, stride = 1;
  for (const MeshAxisInfo& axis : by_distance) {
    rank += coordinates.*axis.coordinate * stride;
    stride *= strategy_.*axis.degree;
  }
  return rank;
}

std::vector<int64_t> Mesh::group(int64_t rank, std::initializer_list<MeshAxis> axes) const {
  MeshCoordinates at = coordinates(rank);
  const auto is_along = [&](const MeshAxisInfo& axis) { return std::ranges::find(axes, axis.axis) != axes.end(); };
  for (const MeshAxisInfo& axis : by_distance) {
    if (is_along(axis)) at.*axis.coordinate = 0;
  }
  std::vector<int64_t> ranks = {this->rank(at)};
  int64_t stride = 1;
  for (const MeshAxisInfo& axis : by_distance) {
    const int64_t nearer = std::ssize(ranks), degree = is_along(axis) ? strategy_.*axis.degree : 1;
    for (int64_t i = 0; i < nearer * (degree - 1); ++i) ranks.push_back(ranks[i] + stride);
    stride *= strategy_.*axis.degree;
  }
  return ranks;
}

}  // namespace copus
