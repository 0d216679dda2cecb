#include "copus/comm/job/meeting/failed_world.h"

#include <utility>
#include <vector>

namespace copus {

namespace {

class FailedHealth final : public Health {
 public:
  explicit FailedHealth(FailureReport failure) : failure_(std::move(failure)) {}

  void set_place(std::string_view /*place*/) override {}
  void set_expected_step_seconds(double /*seconds*/) override {}
  void begin_wait() override {}
  void end_wait() override {}
  void report(const FailureReport& /*report*/) override {}
  std::optional<FailureReport> failure() const override { return failure_; }

 private:
  const FailureReport failure_;
};

class FailedCommunicator final : public Communicator {
 public:
  FailedCommunicator(std::vector<int64_t> ranks, int64_t member, const Health& health)
      : Communicator(std::move(ranks), member), health_(health) {}

 private:
  Work do_start(const Operation& /*operation*/) override {
    health_.check();
    return {};
  }
  void do_run(const Operation& /*operation*/) override { health_.check(); }

  const Health& health_;
};

class FailedWorld final : public World {
 public:
  FailedWorld(int64_t rank, int64_t size, const std::shared_ptr<FailedHealth>& health,
              std::chrono::steady_clock::time_point start)
      : World(rank, size, health), health_(*health), clock_(start) {}

  Health& health() override { return health_; }
  RankClock& clock() override { return clock_; }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) override {
    return std::make_unique<FailedCommunicator>(ranks, member, health_);
  }

  FailedHealth& health_;
  RealClock clock_;
};

}  // namespace

std::unique_ptr<World> failed_world(int64_t rank, int64_t size, const FailureReport& failure,
                                    std::chrono::steady_clock::time_point start) {
  return std::make_unique<FailedWorld>(rank, size, std::make_shared<FailedHealth>(failure), start);
}

}  // namespace copus
