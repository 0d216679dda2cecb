#include "copus/comm/gpu/nccl_plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

void check_group(const std::vector<int64_t>& ranks, int64_t size) {
  const std::set<int64_t> distinct(ranks.begin(), ranks.end());
  COPUS_CHECK(distinct.size() == ranks.size(), "a group with a rank twice: ", list_ranks(ranks));
  COPUS_CHECK(!ranks.empty() && *distinct.begin() >= 0 && *distinct.rbegin() < size, "a group with a rank beyond ",
              size, ": ", list_ranks(ranks));
}

std::set<NcclUse> uses_of(const std::vector<GroupUse>& groups, int64_t size) {
  std::set<NcclUse> uses;
  for (const GroupUse& group : groups) {
    check_group(group.ranks, size);
    if (group.ranks.size() == 1) continue;
    uses.insert(NcclUse::collectives_of(group.ranks));
    if (!group.neighbours_message) continue;
    for (size_t i = 0; i < group.ranks.size(); ++i) {
      const int64_t here = group.ranks[i], next = group.ranks[(i + 1) % group.ranks.size()];
      uses.insert(NcclUse::messages_of(group.ranks, here, next));
      uses.insert(NcclUse::messages_of(group.ranks, next, here));
    }
  }
  return uses;
}

// Each use goes into the first split that it fits into, large ones first.
std::vector<std::vector<NcclUse>> pack(std::vector<NcclUse> uses, int64_t size) {
  std::stable_sort(uses.begin(), uses.end(),
                   [](const NcclUse& a, const NcclUse& b) { return a.members.size() > b.members.size(); });
  std::vector<std::vector<NcclUse>> splits;
  std::vector<std::vector<bool>> taken;  // by split and rank
  for (NcclUse& use : uses) {
    const auto fits = [&](const std::vector<bool>& of_split) {
      return std::none_of(use.members.begin(), use.members.end(), [&](int64_t rank) { return of_split[rank]; });
    };
    const auto split = std::find_if(taken.begin(), taken.end(), fits) - taken.begin();
    if (split == std::ssize(splits)) {
      splits.emplace_back();
      taken.emplace_back(size);
    }
    for (const int64_t rank : use.members) taken[split][rank] = true;
    splits[split].push_back(std::move(use));
  }
  return splits;
}

}  // namespace

std::string list_ranks(const std::vector<int64_t>& ranks) {
  std::string text;
  for (const int64_t rank : ranks) text += concat(text.empty() ? "" : " ", rank);
  return text;
}

std::string to_string(const NcclUse& use) {
  if (use.messages) return concat("messages from ", use.members.front(), " to ", use.members.back());
  return concat("group ", list_ranks(use.group));
}

NcclPlan::Change NcclPlan::prepare(const std::vector<GroupUse>& groups) {
  ++time_;
  Change change;
  std::vector<NcclUse> missing;
  for (const NcclUse& use : uses_of(groups, size_)) {
    if (!used_.contains(use)) missing.push_back(use);
    used_[use] = time_;
  }
  std::vector<int64_t> count(size_);                // by rank
  std::vector<std::pair<int64_t, NcclUse>> unused;  // oldest first
  for (const auto& [use, time] : used_) {
    for (const int64_t rank : use.members) ++count[rank];
    if (time != time_) unused.emplace_back(time, use);
  }
  std::sort(unused.begin(), unused.end());
  for (const auto& [time, use] : unused) {
    const auto has_too_many = [&](int64_t rank) { return count[rank] > kept_; };
    if (std::none_of(use.members.begin(), use.members.end(), has_too_many)) continue;
    for (const int64_t rank : use.members) --count[rank];
    used_.erase(use);
    change.close.push_back(use);
  }
  change.open = pack(std::move(missing), size_);
  return change;
}

}  // namespace copus
