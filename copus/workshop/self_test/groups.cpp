#include "copus/workshop/self_test/groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"
#include "copus/description/mesh.h"

namespace copus {

namespace {

using Groups = std::vector<std::vector<int64_t>>;

Groups groups_along(const Mesh& mesh, MeshAxis axis) {
  std::set<std::vector<int64_t>> groups;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) groups.insert(mesh.group(rank, {axis}));
  return {groups.begin(), groups.end()};
}

int64_t spacing(const Groups& groups) { return groups.front()[1] - groups.front()[0]; }

}  // namespace

const std::vector<int64_t>* GroupFamily::group_of(int64_t rank) const {
  for (const std::vector<int64_t>& group : groups) {
    if (std::find(group.begin(), group.end(), rank) != group.end()) return &group;
  }
  return nullptr;
}

std::vector<GroupUse> GroupFamily::uses() const {
  std::vector<GroupUse> result;
  for (const std::vector<int64_t>& group : groups) {
    result.push_back({.ranks = group, .messages = GroupUse::Messages::ring, .exchanges = true});
  }
  return result;
}

std::vector<ParallelStrategy> layouts_of(int64_t ranks) {
  std::vector<ParallelStrategy> layouts;
  for (int64_t data = ranks; data >= 1; --data) {
    if (ranks % data != 0) continue;
    for (int64_t tensor = 1; tensor <= ranks / data; ++tensor) {
      if (ranks / data % tensor != 0) continue;
      ParallelStrategy layout;
      layout.data_parallel = data;
      layout.tensor_parallel = tensor;
      layout.pipeline_parallel = ranks / data / tensor;
      layouts.push_back(layout);
    }
  }
  return layouts;
}

std::vector<GroupFamily> group_families(int64_t ranks) {
  std::map<Groups, std::set<std::string>> kinds;
  for (const ParallelStrategy& layout : layouts_of(ranks)) {
    const Mesh mesh(layout);
    for (const MeshAxisInfo& axis : mesh_axes) {
      const Groups groups = groups_along(mesh, axis.axis);
      if (groups.front().size() > 1) kinds[groups].insert(axis.name);
    }
    // The two ends of a pipeline hold the copies of a tied embedding.
    if (layout.pipeline_parallel < 3) continue;
    Groups ends;
    for (const std::vector<int64_t>& pipeline : groups_along(mesh, MeshAxis::pipeline)) {
      ends.push_back({pipeline.front(), pipeline.back()});
    }
    kinds[ends].insert("tie");
  }
  std::vector<GroupFamily> families;
  for (const auto& [groups, names] : kinds) {
    families.push_back({.kind = join({names.begin(), names.end()}, ", "), .groups = groups});
  }
  std::sort(families.begin(), families.end(), [](const GroupFamily& a, const GroupFamily& b) {
    return std::tuple(a.members(), spacing(a.groups)) < std::tuple(b.members(), spacing(b.groups));
  });
  return families;
}

std::string describe_ranks(const std::vector<int64_t>& ranks) {
  const int64_t step = ranks.size() > 2 ? ranks[1] - ranks[0] : 0;
  bool is_even = step > 0;
  for (size_t i = 1; i < ranks.size(); ++i) is_even = is_even && ranks[i] - ranks[i - 1] == step;
  if (is_even) return concat(ranks.front(), "..", ranks.back(), step == 1 ? "" : concat(" by ", step));
  std::string text;
  for (const int64_t rank : ranks) text += concat(text.empty() ? "" : ", ", rank);
  return text;
}

}  // namespace copus
