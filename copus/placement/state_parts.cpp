#include "copus/placement/state_parts.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "copus/placement/bucket_offsets.h"

namespace copus {
std::vector<std::vector<StatePart>> find_state_parts(const ModelDescription& model, const Placement& placement) {
  std::map<std::string, size_t> index;
  for (const ParameterInfo& info : list_parameters(model)) index.emplace(info.name, index.size());
  std::vector<std::vector<StatePart>> parts(index.size());
  std::map<std::array<int64_t, 3>, size_t> place_of;
  const Mesh mesh(placement.strategy);
  Placement there = placement;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    there.here = mesh.coordinates(rank);
    const std::vector<LocalParameter> parameters = list_local_parameters(model, there);
    for (const BucketOffsets& bucket : arrange_buckets(parameters, there)) {
      for (const auto& [local, offset] : bucket.entries) {
        const LocalParameter& parameter = parameters[local];
        if (parameter.tied_copy || there.here.tensor % parameter.sharding.replicas != 0) continue;
        const int64_t begin = std::max<int64_t>(0, bucket.shard_begin - offset);
        const int64_t end = std::min(parameter.box.num_elements(), bucket.shard_end - offset);
        if (begin >= end) continue;
        const size_t global = index.at(parameter.info.name);
        // Ranks with this beginning on this tensor-parallel rank are replicas of one another.
        const auto [part, is_new] =
            place_of.try_emplace({static_cast<int64_t>(global), there.here.tensor, begin}, parts[global].size());
        if (is_new) parts[global].push_back({.box = parameter.box, .begin = begin, .end = end, .ranks = {}});
        parts[global][part->second].ranks.push_back(rank);
      }
    }
  }
  return parts;
}

}  // namespace copus
