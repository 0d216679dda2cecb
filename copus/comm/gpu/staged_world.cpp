// stage_through_host: a world of staged groups, and who needs it.
#include <algorithm>
#include <bit>
#include <map>
#include <utility>
#include <vector>

#include "copus/base/philox.h"
#include "copus/comm/gpu/device_world.h"
#include "copus/comm/gpu/staged_communicator.h"

namespace copus {

namespace {

class StagedWorld : public World {
 public:
  StagedWorld(std::unique_ptr<World> world, std::shared_ptr<DeviceRuntime> runtime)
      : runtime_(std::move(runtime)), pinned_(*runtime_), world_(std::move(world)) {}

  int64_t rank() const override { return world_->rank(); }
  int64_t size() const override { return world_->size(); }
  Health& health() override { return world_->health(); }
  RankClock& clock() override { return world_->clock(); }
  int64_t communicator_bytes() const override { return world_->communicator_bytes(); }
  void prepare(const std::vector<GroupUse>& groups) override { world_->prepare(groups); }

  Communicator& group(const std::vector<int64_t>& ranks) override {
    auto& group = groups_[ranks];
    if (!group) group = std::make_unique<StagedCommunicator>(world_->group(ranks), *runtime_, pinned_);
    return *group;
  }

 private:
  const std::shared_ptr<DeviceRuntime> runtime_;
  PinnedPool pinned_;
  std::map<std::vector<int64_t>, std::unique_ptr<StagedCommunicator>> groups_;
  // Ends before the groups, whose buffers its threads may still be using.
  const std::unique_ptr<World> world_;
};

}  // namespace

std::unique_ptr<World> stage_through_host(std::unique_ptr<World> world, std::shared_ptr<DeviceRuntime> runtime) {
  return std::make_unique<StagedWorld>(std::move(world), std::move(runtime));
}

bool ranks_share_a_device(World& world, const DeviceRuntime& runtime) {
  const auto mine = std::bit_cast<int64_t>(stream_key(0, runtime.identity()));
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  world.everyone().all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), DataType::int64);
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) != all.end();
}

}  // namespace copus
