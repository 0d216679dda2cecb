#include "copus/placement/state_parts.h"

#include <array>
#include <map>
#include <string>

#include "copus/placement/placed_tensors.h"

namespace copus {
std::vector<std::vector<StatePart>> find_state_parts(const ModelDescription& model, const Placement& placement) {
  std::map<std::string, size_t> index;
  for (const ParameterInfo& info : list_parameters(model)) index.emplace(info.name, index.size());
  std::vector<std::vector<StatePart>> parts(index.size());
  std::map<std::array<int64_t, 3>, size_t> place_of;
  const Mesh mesh(placement.strategy);
  // All tensors of an optimizer are sharded alike, so one slot represents them.
  const PlacedState state = place_state(model, placement.strategy, placement.stages, {.slots = {{"state"}}});
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const MeshCoordinates there = mesh.coordinates(rank);
    for (const HeldTensor& held : list_held(state, there)) {
      const PlacedTensor& tensor = *held.tensor;
      if (tensor.role != TensorRole::optimizer_slot || tensor.tied_copy || held.kept.size() == 0) continue;
      if (there.tensor % tensor.tensor_replicas() != 0) continue;
      const size_t global = index.at(tensor.parameter.name);
      const auto [begin, end] = held.kept;
      // Ranks whose part begins at the same place are replicas of each other.
      const auto [part, is_new] =
          place_of.try_emplace({static_cast<int64_t>(global), there.tensor, begin}, parts[global].size());
      if (is_new) parts[global].push_back({.box = held.boxes.front(), .begin = begin, .end = end, .ranks = {}});
      parts[global][part->second].ranks.push_back(rank);
    }
  }
  return parts;
}

}  // namespace copus
