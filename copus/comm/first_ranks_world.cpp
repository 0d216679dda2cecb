#include "copus/comm/first_ranks_world.h"

#include "copus/base/error.h"

namespace copus {

namespace {

class FirstRanksWorld final : public WrappedWorld {
 public:
  FirstRanksWorld(World& inner, int64_t size) : WrappedWorld(inner, size) {}
};

}  // namespace

std::unique_ptr<World> first_ranks(World& inner, int64_t size) {
  COPUS_CHECK(inner.rank() < size && size <= inner.size(), "rank ", inner.rank(), " in the first ", size, " of ",
              inner.size());
  return std::make_unique<FirstRanksWorld>(inner, size);
}

}  // namespace copus
