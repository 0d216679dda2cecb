#include "copus/comm/gpu/nccl_plan.h"

#include <algorithm>
#include <map>
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

int64_t count_links(const GroupUse& group) {
  switch (group.messages) {
    case GroupUse::Messages::none:
      return 0;
    case GroupUse::Messages::line:
      return std::ssize(group.ranks) - 1;
    case GroupUse::Messages::ring:
      return std::ssize(group.ranks);
    case GroupUse::Messages::one_way_ring:
      return 2 * std::ssize(group.ranks);
  }
  fail_check("a kind of messages", __FILE__, __LINE__, "");
}

// Maps each use to its largest vector.
std::map<NcclUse, int64_t> uses_of(const std::vector<GroupUse>& groups, int64_t size) {
  std::map<NcclUse, int64_t> uses;
  for (const GroupUse& group : groups) {
    check_group(group.ranks, size);
    if (group.ranks.size() == 1) continue;
    if (group.collectives) {
      int64_t& largest = uses[NcclUse::collectives_of(group.ranks)];
      largest = std::max(largest, group.collective_bytes);
    }
    if (group.exchanges) uses[NcclUse::exchanges_of(group.ranks)];
    for (int64_t link = 0; link < count_links(group); ++link) uses[NcclUse::messages_of(group.ranks, link)];
  }
  return uses;
}

// Each use goes into the first split where it fits, large uses first.
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

int64_t link_between(int64_t member, int64_t other, int64_t size) {
  const auto [low, high] = std::minmax(member, other);
  COPUS_CHECK(high - low == 1 || (low == 0 && high == size - 1), "members ", member, " and ", other, " of ", size,
              " have no link");
  return high - low == 1 ? low : high;
}

std::string to_string(const NcclUse& use) {
  switch (use.kind) {
    case NcclUse::Kind::collectives:
      return concat("group ", list_ranks(use.group));
    case NcclUse::Kind::exchanges:
      return concat("exchanges of ", list_ranks(use.group));
    case NcclUse::Kind::messages:
      return concat("messages between ", use.members.front(), " and ", use.members.back());
  }
  fail_check("a use of a communicator", __FILE__, __LINE__, "");
}

NcclPlan::Change NcclPlan::prepare(const std::vector<GroupUse>& groups, const Bytes& bytes) {
  ++time_;
  Change change;
  std::vector<NcclUse> missing;
  for (const auto& [use, largest] : uses_of(groups, size_)) {
    const auto [place, is_new] = used_.try_emplace(use);
    Used& used = place->second;
    if (is_new) {
      missing.push_back(use);
    } else if (largest > used.largest_bytes) {
      change.warm.push_back(use);
    }
    used = {.time = time_, .largest_bytes = std::max(largest, used.largest_bytes)};
  }
  const auto bytes_of = [&](const NcclUse& use) {
    const auto known = bytes.find(use.kind);
    return known == bytes.end() ? 0 : known->second;
  };
  std::vector<int64_t> taken(size_);                // by rank
  std::vector<std::pair<int64_t, NcclUse>> unused;  // oldest first
  for (const auto& [use, used] : used_) {
    for (const int64_t rank : use.members) taken[rank] += bytes_of(use);
    if (used.time != time_) unused.emplace_back(used.time, use);
  }
  std::sort(unused.begin(), unused.end());
  for (const auto& [time, use] : unused) {
    const auto has_too_many = [&](int64_t rank) { return taken[rank] > kept_bytes_; };
    if (std::none_of(use.members.begin(), use.members.end(), has_too_many)) continue;
    for (const int64_t rank : use.members) taken[rank] -= bytes_of(use);
    used_.erase(use);
    change.close.push_back(use);
  }
  change.open = pack(std::move(missing), size_);
  return change;
}

std::vector<NcclUse> NcclPlan::drop_unused() {
  std::vector<NcclUse> unused;
  std::erase_if(used_, [&](const auto& one) {
    if (one.second.time != time_) unused.push_back(one.first);
    return one.second.time != time_;
  });
  return unused;
}

void NcclPlan::withdraw(const Change& change) {
  for (const std::vector<NcclUse>& split : change.open) {
    for (const NcclUse& use : split) used_.erase(use);
  }
  for (const NcclUse& use : change.warm) used_.at(use).largest_bytes = 0;  // it will have to be warmed up again
}

}  // namespace copus
