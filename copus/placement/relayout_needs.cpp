#include "copus/placement/relayout_needs.h"

#include <iterator>
#include <set>
#include <tuple>
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
  const bool is_cut = from_.is_cut(kind), apart = is_cut && one_share_;
  // By number of replicas, first tensor-parallel rank, and, with one_share, the share of every replica.
  std::map<std::tuple<int64_t, int64_t, std::vector<int64_t>>, Need> needs;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Region wanted = entries[i].inside(stretch);
    const Entry& old = from_.shape(content, 0).entries.at(i);
    COPUS_CHECK(old.name == entries[i].name);
    for (int64_t part = 0; part < old.parts && wanted.count > 0; ++part) {
      const int64_t first_tensor = part * old.replicas;
      const Entry& held = from_.shape(content, first_tensor).entries[i];
      std::vector<Stretch> stretches = {{0, num_elements(held.box)}};
      if (apart) stretches = parts_in_one_share(content, i, first_tensor, old.replicas);
      for (const Stretch& one : stretches) {
        int64_t elements = 0;
        for_overlaps(wanted, held.inside({held.offset + one.begin, held.offset + one.end}),
                     [&](const Rectangle& both) { elements += num_elements(both); });
        if (elements == 0) continue;
        std::vector<int64_t> shares;
        for (int64_t replica = 0; apart && replica < old.replicas; ++replica) {
          const int64_t offset = from_.shape(content, first_tensor + replica).entries[i].offset;
          shares.push_back(from_.share_of(content, first_tensor + replica, offset + one.begin));
        }
        Need& need = needs[{old.replicas, first_tensor, shares}];
        need.first_tensor = first_tensor;
        need.replicas = old.replicas;
        need.elements += elements;
        need.members.push_back({i, one});
        if (!is_cut) continue;
        need.shares.resize(need.replicas);
        for (size_t replica = 0; replica < shares.size(); ++replica) need.shares[replica][shares[replica]] += elements;
        if (!apart) count_shares(content, i, wanted, need);
      }
    }
  }
  std::vector<Need> in_order;
  for (auto& [holders, need] : needs) in_order.push_back(std::move(need));
  return in_order;
}

// Splits a range of elements at all boundaries between the shards of its replicas. Replicas hold the same elements, but
// possibly at different positions of their buckets, so their shards end at different elements.
std::vector<Stretch> Needs::parts_in_one_share(ContentKind content, size_t entry, int64_t first_tensor,
                                               int64_t replicas) const {
  const int64_t elements = num_elements(from_.shape(content, first_tensor).entries[entry].box);
  std::set<int64_t> bounds = {0, elements};
  for (int64_t tensor = first_tensor; tensor < first_tensor + replicas; ++tensor) {
    const int64_t offset = from_.shape(content, tensor).entries[entry].offset;
    for (int64_t share = 0; share < from_.zero_shards(); ++share) {
      const int64_t begin = from_.share(content, tensor, share).begin - offset;
      if (begin > 0 && begin < elements) bounds.insert(begin);
    }
  }
  std::vector<Stretch> parts;
  for (auto end = std::next(bounds.begin()); end != bounds.end(); ++end) parts.push_back({*std::prev(end), *end});
  return parts;
}

void Needs::count_shares(ContentKind content, size_t entry, const Region& wanted, Need& need) const {
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
