#include "copus/comm/world.h"

#include <algorithm>
#include <numeric>

#include "copus/base/error.h"

namespace copus {

Communicator& World::group(const std::vector<int64_t>& ranks) {
  const auto found = groups_.find(ranks);
  if (found != groups_.end()) return *found->second;
  return *groups_.emplace(ranks, make_group(ranks, place_in(ranks))).first->second;
}

Communicator& World::everyone() {
  std::vector<int64_t> ranks(size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return group(ranks);
}

int64_t World::place_in(const std::vector<int64_t>& ranks) const {
  std::vector<int64_t> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  COPUS_CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), "a group with a rank twice");
  COPUS_CHECK(!sorted.empty() && sorted.front() >= 0 && sorted.back() < size(), "a group with a rank beyond ", size());
  const int64_t place = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
  COPUS_CHECK(place < std::ssize(ranks), "rank ", rank(), " asks for a group without itself");
  return place;
}

std::unique_ptr<Communicator> WrappedWorld::make_group(const std::vector<int64_t>& ranks, int64_t /*member*/) {
  return std::make_unique<WrappedCommunicator>(inner_->group(ranks));
}

void World::require(const std::vector<GroupUse>& groups) {
  if (const std::optional<std::string> lack = prepare(groups)) throw UserError(*lack);
}

}  // namespace copus
