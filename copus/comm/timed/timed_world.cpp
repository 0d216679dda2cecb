#include "copus/comm/timed/timed_world.h"

#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/timed/timed_communicator.h"
#include "copus/comm/timed/virtual_clock.h"

namespace copus {

namespace {

class TimedWorld final : public WrappedWorld {
 public:
  // Without a clock of its own it is on that of `inner`.
  TimedWorld(std::unique_ptr<World> inner, ClusterDescription cluster, std::unique_ptr<RankClock> clock)
      : WrappedWorld(std::move(inner)), cluster_(std::move(cluster)), own_clock_(std::move(clock)) {}

  RankClock& clock() override { return own_clock_ ? *own_clock_ : inner().clock(); }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t /*member*/) override {
    return std::make_unique<TimedCommunicator>(inner().group(ranks), clock(), cluster_);
  }

  const ClusterDescription cluster_;
  const std::unique_ptr<RankClock> own_clock_;
};

}  // namespace

std::unique_ptr<World> with_links(std::unique_ptr<World> world, const ClusterDescription& cluster, ClockKind clock) {
  COPUS_CHECK(clock == ClockKind::real ||
              (cluster.within_node.bytes_per_second > 0 && cluster.between_nodes.bytes_per_second > 0));
  switch (clock) {
    case ClockKind::real:
      return world;
    case ClockKind::wall:
      return std::make_unique<TimedWorld>(std::move(world), cluster, nullptr);
    case ClockKind::virtual_time:
      return std::make_unique<TimedWorld>(std::move(world), cluster,
                                          std::make_unique<VirtualClock>(cluster.flops_per_second));
  }
  fail_check("known clock", __FILE__, __LINE__, "");
}

}  // namespace copus
