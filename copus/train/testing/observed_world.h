// For tests: a world of one rank that records reports.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "copus/comm/shared_memory/single_rank_world.h"

namespace copus {

// Records reported places. Its clock moves only when it is advanced.
class ObservedWorld : public WrappedWorld, public Health, public RankClock {
 public:
  ObservedWorld() : WrappedWorld(single_rank_world()) {}

  const std::string& place() const { return place_; }
  double expected_step_seconds() const { return expected_step_seconds_; }

  Health& health() override { return *this; }
  RankClock& clock() override { return *this; }

  void set_place(std::string_view place) override { place_ = place; }
  void set_expected_step_seconds(double seconds) override { expected_step_seconds_ = seconds; }
  void begin_wait() override {}
  void end_wait() override {}
  void report(const FailureReport& /*report*/) override {}
  std::optional<FailureReport> failure() const override { return std::nullopt; }

  double now() override { return seconds_; }
  void advance_to(double seconds) override { seconds_ = seconds; }
  void charge(double /*flops*/) override {}
  void begin_communication() override {}
  void end_communication() override {}

 private:
  std::string place_;
  double expected_step_seconds_ = 0;
  double seconds_ = 0;
};

}  // namespace copus
