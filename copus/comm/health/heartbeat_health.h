// Health where ranks have no memory in common: what one rank knows of itself and, by heartbeats, of others, and how it
// judges from that who has failed. Classes that derive from it send the heartbeats and the failures.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/comm/health.h"

namespace copus {

class HeartbeatHealth : public Health {
 public:
  void set_place(std::string_view place) final;
  void set_expected_step_seconds(double seconds) final;
  void begin_wait() final;
  void end_wait() final;
  std::optional<FailureReport> failure() const final;

  // Where a rank last said that it is; empty where that is not known here.
  std::string place_of(int64_t rank) const;

 protected:
  using Clock = std::chrono::steady_clock;

  struct Signs {
    bool expected = false;  // to send heartbeats
    Clock::time_point heard;
    int64_t pid = 0;
    std::string place;
  };

  HeartbeatHealth(int64_t rank, int64_t size);

  int64_t rank() const { return rank_; }
  int64_t size() const { return static_cast<int64_t>(signs_.size()); }

  // Protects all that follows. The condition is notified of every failure.
  std::mutex& mutex() const { return mutex_; }
  std::condition_variable& changed() { return changed_; }

  void expect(int64_t rank, int64_t pid);
  void expect_no_more(int64_t rank) { at(rank).expected = false; }
  void hear(int64_t rank, Clock::time_point now, int64_t pid, std::string place);
  const Signs& signs_of(int64_t rank) const { return signs_[rank]; }
  const std::string& own_place() const { return signs_of(rank_).place; }

  // Looks whether this rank makes progress, and whether those that should send heartbeats do. To be called many times a
  // second.
  std::optional<FailureReport> find_failure(Clock::time_point now);
  bool has_failed() const { return failure_.has_value(); }
  // The first failure counts.
  void set_failure(const FailureReport& report);

 private:
  Signs& at(int64_t rank) { return signs_[rank]; }

  const int64_t rank_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Clock::time_point progress_ = Clock::now();
  Clock::time_point looked_ = Clock::now();
  double expected_step_seconds_ = 0;
  int64_t waiting_ = 0;
  std::vector<Signs> signs_;
  std::optional<FailureReport> failure_;
};

}  // namespace copus
