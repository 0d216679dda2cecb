#include "copus/comm/first_ranks_world.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

class ChosenRanksWorld final : public WrappedWorld {
 public:
  ChosenRanksWorld(World& inner, int64_t rank, std::vector<int64_t> ranks)
      : WrappedWorld(inner, rank, std::ssize(ranks)), ranks_(std::move(ranks)) {}

  std::optional<std::string> prepare(const std::vector<GroupUse>& groups) override {
    std::vector<GroupUse> there = groups;
    for (GroupUse& group : there) group.ranks = in_inner(group.ranks);
    return inner().prepare(there);
  }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) override {
    return WrappedWorld::make_group(in_inner(ranks), member);
  }

  std::vector<int64_t> in_inner(const std::vector<int64_t>& ranks) const {
    std::vector<int64_t> there;
    std::ranges::transform(ranks, std::back_inserter(there), [this](int64_t rank) { return ranks_.at(rank); });
    return there;
  }

  const std::vector<int64_t> ranks_;  // ranks in the inner world, by rank of this world
};

}  // namespace

std::unique_ptr<World> chosen_ranks(World& inner, std::vector<int64_t> ranks) {
  const int64_t rank = std::ranges::find(ranks, inner.rank()) - ranks.begin();
  const bool fits = std::ranges::all_of(ranks, [&](int64_t one) { return one >= 0 && one < inner.size(); });
  COPUS_CHECK(fits && rank < std::ssize(ranks), "rank ", inner.rank(), " in ", ranks.size(), " ranks of ",
              inner.size());
  return std::make_unique<ChosenRanksWorld>(inner, rank, std::move(ranks));
}

std::unique_ptr<World> first_ranks(World& inner, int64_t size) {
  std::vector<int64_t> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return chosen_ranks(inner, std::move(ranks));
}

}  // namespace copus
