#include "copus/comm/shared_memory/shared_memory_world.h"

#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/health/watchdog.h"
#include "copus/comm/queued_communicator.h"
#include "copus/comm/shared_memory/shared_counter.h"
#include "copus/comm/shared_memory/shared_memory_transport.h"
#include "copus/comm/shared_memory/shared_segment.h"
#include "copus/comm/solo_communicator.h"

namespace copus {

namespace {

// The connection of a rank to the others.
struct Connection {
  Connection(std::shared_ptr<SharedSegment> its_segment, int64_t rank, double wait_seconds)
      : segment(std::move(its_segment)),
        layout(segment->address()),
        health(layout.health(), rank, layout.size()),
        clock(layout.start()),
        policy(wait_policy(health, wait_seconds, layout.size())) {}

  const std::shared_ptr<SharedSegment> segment;
  SegmentTable layout;
  SharedHealth health;
  RealClock clock;
  const WaitPolicy policy;
  const std::shared_ptr<OpenQueues> queues = std::make_shared<OpenQueues>();
};

class SharedMemoryWorld final : public World {
 public:
  SharedMemoryWorld(const std::shared_ptr<Connection>& connection, bool watch, AfterFailure after_failure)
      : World(connection->health.rank(), connection->health.size(), connection), connection_(*connection) {
    if (watch) watchdog_.emplace(connection_.health, HealthLimits{}, after_failure);
  }

  Health& health() override { return connection_.health; }
  RankClock& clock() override { return connection_.clock; }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) override {
    if (ranks.size() == 1) return std::make_unique<SoloCommunicator>(rank());
    return std::make_unique<QueuedCommunicator>(
        ranks, member,
        std::make_unique<SharedMemoryTransport>(connection_.layout.find_or_add_group(ranks), ranks, member,
                                                connection_.health, connection_.policy),
        connection_.queues);
  }

  Connection& connection_;
  // The watchdog is destroyed before the groups, whose threads may be waiting for other ranks. If an error ends this
  // rank, the watchdog ends these waits.
  std::optional<Watchdog> watchdog_;
};

}  // namespace

std::unique_ptr<World> join_shared_memory(std::shared_ptr<SharedSegment> segment, int64_t rank, int64_t size,
                                          double wait_seconds, bool watch, AfterFailure after_failure) {
  auto world = std::make_unique<SharedMemoryWorld>(std::make_shared<Connection>(std::move(segment), rank, wait_seconds),
                                                   watch, after_failure);
  COPUS_CHECK(world->size() == size, "a segment for ", world->size(), " ranks, not ", size);
  return world;
}

}  // namespace copus
