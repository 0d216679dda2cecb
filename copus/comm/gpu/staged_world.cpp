// stage_through_host: a world of staged groups, and who needs it.
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "copus/base/philox.h"
#include "copus/comm/gpu/device_world.h"
#include "copus/comm/gpu/staged_communicator.h"

namespace copus {

namespace {

// What staged groups use: the memory that the group behind them may still be working on.
struct Staging {
  explicit Staging(std::shared_ptr<DeviceRuntime> its_runtime) : runtime(std::move(its_runtime)), pinned(*runtime) {}
  const std::shared_ptr<DeviceRuntime> runtime;
  PinnedPool pinned;
};

class StagedWorld final : public WrappedWorld {
 public:
  StagedWorld(std::unique_ptr<World> inner, const std::shared_ptr<Staging>& staging)
      : WrappedWorld(std::move(inner), staging), staging_(*staging) {}

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t /*member*/) override {
    return std::make_unique<StagedCommunicator>(inner().group(ranks), *staging_.runtime, staging_.pinned);
  }

  Staging& staging_;
};

}  // namespace

std::unique_ptr<World> stage_through_host(std::unique_ptr<World> world, std::shared_ptr<DeviceRuntime> runtime) {
  return std::make_unique<StagedWorld>(std::move(world), std::make_shared<Staging>(std::move(runtime)));
}

bool ranks_share_a_device(World& world, const DeviceRuntime& runtime) {
  const auto mine = std::bit_cast<int64_t>(stream_key(0, runtime.identity()));
  std::vector<int64_t> all(world.size());
  world.everyone().all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), DataType::int64);
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) != all.end();
}

}  // namespace copus
