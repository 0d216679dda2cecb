#include "copus/comm/shared_memory/shared_memory_world.h"

#include <map>
#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/health/watchdog.h"
#include "copus/comm/queued_communicator.h"
#include "copus/comm/real_clock.h"
#include "copus/comm/shared_memory/shared_counter.h"
#include "copus/comm/shared_memory/shared_memory_transport.h"
#include "copus/comm/shared_memory/shared_segment.h"
#include "copus/comm/solo_transport.h"

namespace copus {

namespace {

class SharedMemoryWorld : public World {
 public:
  SharedMemoryWorld(std::shared_ptr<SharedSegment> segment, int64_t rank, double wait_seconds, bool watch)
      : segment_(std::move(segment)),
        layout_(segment_->address()),
        rank_(rank),
        health_(layout_.health(), rank, layout_.size()),
        clock_(layout_.start()),
        policy_(wait_policy(health_, wait_seconds, layout_.size())) {
    if (watch) watchdog_.emplace(health_);
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return layout_.size(); }
  Health& health() override { return health_; }
  RankClock& clock() override { return clock_; }

  Communicator& group(const std::vector<int64_t>& ranks) override {
    std::unique_ptr<Communicator>& communicator = groups_[ranks];
    if (!communicator) communicator = make_group(ranks);
    return *communicator;
  }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks) {
    const int64_t member = place_in(ranks);
    std::unique_ptr<Transport> transport;
    if (ranks.size() == 1) {
      transport = std::make_unique<SoloTransport>();
    } else {
      transport =
          std::make_unique<SharedMemoryTransport>(layout_.find_or_add_group(ranks), ranks, member, health_, policy_);
    }
    return std::make_unique<QueuedCommunicator>(ranks, member, std::move(transport));
  }

  const std::shared_ptr<SharedSegment> segment_;
  SegmentLayout layout_;
  const int64_t rank_;
  SharedHealth health_;
  RealClock clock_;
  const WaitPolicy policy_;
  std::map<std::vector<int64_t>, std::unique_ptr<Communicator>> groups_;
  // Goes first: it tells the others of an error that ends this rank before the threads of groups, which may be waiting
  // for the others, are waited for.
  std::optional<Watchdog> watchdog_;
};

}  // namespace

std::unique_ptr<World> join_shared_memory(std::shared_ptr<SharedSegment> segment, int64_t rank, int64_t size,
                                          double wait_seconds, bool watch) {
  auto world = std::make_unique<SharedMemoryWorld>(std::move(segment), rank, wait_seconds, watch);
  COPUS_CHECK(world->size() == size, "a segment for ", world->size(), " ranks, not ", size);
  return world;
}

}  // namespace copus
