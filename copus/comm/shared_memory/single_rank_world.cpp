#include "copus/comm/shared_memory/single_rank_world.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/queued_communicator.h"
#include "copus/comm/real_clock.h"
#include "copus/comm/solo_transport.h"

namespace copus {

namespace {

// Without a segment: a lone rank shares nothing, and limits on files and address space are none of its business.
class SoloWorld : public World {
 public:
  SoloWorld()
      : region_((static_cast<size_t>(health_bytes(1)) + sizeof(Line) - 1) / sizeof(Line)),
        health_(region_.front().bytes.data(), 0, 1),
        clock_(std::chrono::steady_clock::now()),
        group_({0}, 0, std::make_unique<SoloTransport>()) {}

  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  Health& health() override { return health_; }
  RankClock& clock() override { return clock_; }

  Communicator& group(const std::vector<int64_t>& ranks) override {
    COPUS_CHECK(ranks == std::vector<int64_t>{0}, "a group beyond the only rank");
    return group_;
  }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };
  std::vector<Line> region_;
  SharedHealth health_;
  RealClock clock_;
  QueuedCommunicator group_;
};

}  // namespace

std::unique_ptr<World> single_rank_world() { return std::make_unique<SoloWorld>(); }

}  // namespace copus
