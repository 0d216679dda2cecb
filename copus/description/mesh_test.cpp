#include "copus/description/mesh.h"

#include <gmock/gmock.h>

#include <set>

#include "copus/base/error.h"

namespace copus {
namespace {

using testing::ElementsAre;

const ParallelStrategy two_by_four_by_three{.data_parallel = 2, .tensor_parallel = 4, .pipeline_parallel = 3};

TEST(Mesh, TensorParallelRanksAreNeighboursAndStagesLieFarthestApart) {
  const Mesh mesh(two_by_four_by_three);
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.coordinates(0), (MeshCoordinates{.data = 0, .tensor = 0, .pipeline = 0}));
  EXPECT_EQ(mesh.coordinates(1), (MeshCoordinates{.data = 0, .tensor = 1, .pipeline = 0}));
  EXPECT_EQ(mesh.coordinates(4), (MeshCoordinates{.data = 1, .tensor = 0, .pipeline = 0}));
  EXPECT_EQ(mesh.coordinates(8), (MeshCoordinates{.data = 0, .tensor = 0, .pipeline = 1}));
  EXPECT_EQ(mesh.coordinates(23), (MeshCoordinates{.data = 1, .tensor = 3, .pipeline = 2}));
}

TEST(Mesh, RanksAndCoordinatesDetermineEachOther) {
  const Mesh mesh(two_by_four_by_three);
  for (int64_t rank = 0; rank < mesh.size(); ++rank) EXPECT_EQ(mesh.rank(mesh.coordinates(rank)), rank);
}

TEST(Mesh, GroupsRunAlongOneAxis) {
  const Mesh mesh(two_by_four_by_three);
  EXPECT_THAT(mesh.group(6, {MeshAxis::tensor}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(mesh.group(6, {MeshAxis::data}), ElementsAre(2, 6));
  EXPECT_THAT(mesh.group(6, {MeshAxis::pipeline}), ElementsAre(6, 14, 22));
  EXPECT_THAT(mesh.group(14, {MeshAxis::data, MeshAxis::tensor}), ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_THAT(mesh.group(14, {MeshAxis::data, MeshAxis::pipeline}), ElementsAre(2, 6, 10, 14, 18, 22));
}

TEST(Mesh, TheGroupsOfAnAxisShareOutTheRanks) {
  const Mesh mesh(two_by_four_by_three);
  for (const MeshAxis axis : {MeshAxis::data, MeshAxis::tensor, MeshAxis::pipeline}) {
    std::set<std::vector<int64_t>> groups;
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      const std::vector<int64_t> group = mesh.group(rank, {axis});
      EXPECT_THAT(group, testing::Contains(rank));
      groups.insert(group);
    }
    std::multiset<int64_t> members;
    for (const auto& group : groups) members.insert(group.begin(), group.end());
    EXPECT_EQ(members.size(), static_cast<size_t>(mesh.size())) << "every rank in exactly one group";
  }
}

TEST(Mesh, TheTableNamesEveryAxisOnceWithItsDegreeAndCoordinate) {
  std::vector<MeshAxis> axes;
  std::vector<int64_t> degrees, coordinates, distances;
  const MeshCoordinates last = Mesh(two_by_four_by_three).coordinates(23);
  for (const MeshAxisInfo& axis : mesh_axes) {
    axes.push_back(axis.axis);
    degrees.push_back(two_by_four_by_three.*axis.degree);
    coordinates.push_back(last.*axis.coordinate);
    distances.push_back(axis.distance);
  }
  EXPECT_THAT(axes, ElementsAre(MeshAxis::data, MeshAxis::tensor, MeshAxis::pipeline));
  EXPECT_THAT(degrees, ElementsAre(2, 4, 3));
  EXPECT_THAT(coordinates, ElementsAre(1, 3, 2));
  EXPECT_THAT(distances, ElementsAre(1, 0, 2));
}

TEST(Mesh, RanksOutsideAreOurMistake) {
  const Mesh mesh(two_by_four_by_three);
  EXPECT_THROW(mesh.coordinates(24), InternalError);
  EXPECT_THROW(mesh.coordinates(-1), InternalError);
  EXPECT_THROW(Mesh({.data_parallel = 0}), InternalError);
}

}  // namespace
}  // namespace copus
