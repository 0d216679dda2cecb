#include "copus/comm/timed/timed_world.h"

#include <map>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/timed/timed_communicator.h"
#include "copus/comm/timed/virtual_clock.h"

namespace copus {

namespace {

class TimedWorld : public World {
 public:
  // Without a clock of its own it is on that of `world`.
  TimedWorld(std::unique_ptr<World> world, ClusterDescription cluster, std::unique_ptr<RankClock> clock)
      : cluster_(std::move(cluster)), own_clock_(std::move(clock)), world_(std::move(world)) {}

  int64_t rank() const override { return world_->rank(); }
  int64_t size() const override { return world_->size(); }
  Health& health() override { return world_->health(); }
  RankClock& clock() override { return own_clock_ ? *own_clock_ : world_->clock(); }

  void prepare(const std::vector<GroupUse>& groups) override { world_->prepare(groups); }
  int64_t communicator_bytes() const override { return world_->communicator_bytes(); }

  Communicator& group(const std::vector<int64_t>& ranks) override {
    auto& group = groups_[ranks];
    if (!group) group = std::make_unique<TimedCommunicator>(world_->group(ranks), clock(), cluster_);
    return *group;
  }

 private:
  const ClusterDescription cluster_;
  const std::unique_ptr<RankClock> own_clock_;
  std::map<std::vector<int64_t>, std::unique_ptr<TimedCommunicator>> groups_;
  // Ends before the groups, whose buffers its threads may still be using.
  const std::unique_ptr<World> world_;
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
