#include "copus/placement/relayout_needs.h"

#include <utility>

#include "copus/base/error.h"

namespace copus::relayout {

const std::vector<Need>& Needs::of(StateKind kind, ContentKind content, const MeshCoordinates& receiver) {
  const int64_t data = to_.is_cut(kind) ? receiver.data : 0;
  const auto [found, is_new] =
      remembered_.try_emplace({from_.is_cut(kind), to_.is_cut(kind), content, receiver.tensor, data});
  if (is_new) found->second = find(kind, content, receiver);
  return found->second;
}

std::vector<Need> Needs::find(StateKind kind, ContentKind content, const MeshCoordinates& receiver) const {
  const std::vector<Entry>& entries = to_.shape(content, receiver.tensor).entries;
  const Stretch stretch = to_.stretch(kind, content, receiver);
  std::map<std::pair<int64_t, int64_t>, Need> needs;  // by number of replicas and first tensor-parallel rank
  for (size_t i = 0; i < entries.size(); ++i) {
    const Region wanted = entries[i].inside(stretch);
    const Sharding& old = from_.shape(content, 0).entries.at(i).sharding;
    COPUS_CHECK(from_.shape(content, 0).entries[i].name == entries[i].name);
    for (int64_t part = 0; part < old.parts && wanted.count > 0; ++part) {
      const int64_t first_tensor = part * old.replicas;
      const Rectangle& old_box = from_.shape(content, first_tensor).entries[i].box;
      Region whole_part;
      whole_part.add(old_box);
      int64_t elements = 0;
      for_overlaps(wanted, whole_part, [&](const Rectangle& both) { elements += num_elements(both); });
      if (elements == 0) continue;
      Need& need = needs[{old.replicas, first_tensor}];
      need.first_tensor = first_tensor;
      need.replicas = old.replicas;
      need.elements += elements;
      need.members.push_back({i, old_box});
      if (from_.is_cut(kind)) count_shares(content, i, wanted, need);
    }
  }
  std::vector<Need> in_order;
  for (auto& [holders, need] : needs) in_order.push_back(std::move(need));
  return in_order;
}

void Needs::count_shares(ContentKind content, size_t entry, const Region& wanted, Need& need) const {
  need.shares.resize(need.replicas);
  for (int64_t replica = 0; replica < need.replicas; ++replica) {
    const int64_t tensor = need.first_tensor + replica;
    const Entry& old = from_.shape(content, tensor).entries[entry];
    for (const Rectangle& one : wanted) {
      const Rectangle both = intersect(one, old.box);
      if (num_elements(both) == 0) continue;
      const int64_t first = from_.share_of(content, tensor, old.position(both.row_begin, both.column_begin));
      const int64_t last = from_.share_of(content, tensor, old.position(both.row_end - 1, both.column_end - 1));
      Region part;
      part.add(both);
      for (int64_t share = first; share <= last; ++share) {
        int64_t elements = 0;
        for_overlaps(part, old.inside(from_.share(content, tensor, share)),
                     [&](const Rectangle& held) { elements += num_elements(held); });
        if (elements > 0) need.shares[replica][share] += elements;
      }
    }
  }
}

}  // namespace copus::relayout
