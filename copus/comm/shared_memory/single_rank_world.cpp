#include "copus/comm/shared_memory/single_rank_world.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

#include "copus/comm/health/shared_health.h"
#include "copus/comm/solo_communicator.h"

namespace copus {

namespace {

// Has no shared segment. A single rank shares nothing, and should run under any limit on files and addresses.
class SoloWorld final : public World {
 public:
  SoloWorld()
      : World(0, 1, nullptr),
        region_((health_bytes(1) + sizeof(Line) - 1) / sizeof(Line)),
        health_(region_.front().bytes.data(), 0, 1),
        clock_(std::chrono::steady_clock::now()) {}

  Health& health() override { return health_; }
  RankClock& clock() override { return clock_; }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };

  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& /*ranks*/, int64_t /*member*/) override {
    return std::make_unique<SoloCommunicator>(0);
  }

  std::vector<Line> region_;
  SharedHealth health_;
  RealClock clock_;
};

}  // namespace

std::unique_ptr<World> single_rank_world() { return std::make_unique<SoloWorld>(); }

}  // namespace copus
