// Collects what a launcher learns about the ranks of one epoch and about the failure that ends it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/comm/health/rank_monitor.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/job/member/control_socket.h"
#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

// A longer time between two checks means that the launcher itself was stopped.
inline constexpr double longest_look_at_stopped = 0.5;

class EpochWatch {
 public:
  EpochWatch() = default;
  EpochWatch(const EpochWatch&) = delete;
  EpochWatch& operator=(const EpochWatch&) = delete;
  virtual ~EpochWatch() = default;

  // Only the first report counts.
  virtual void report(const FailureReport& report) = 0;
  virtual std::optional<FailureReport> failure() const = 0;
  // Looks for a failure. `seconds`: the time since the previous check.
  virtual std::optional<FailureReport> look(double seconds) = 0;

  virtual std::string place_of(int64_t rank) const = 0;
  virtual bool has_joined(int64_t rank) const = 0;
  virtual bool has_left(int64_t rank) const = 0;  // in good order
  virtual bool is_stopped(int64_t rank) const = 0;
  virtual double longest_step_seconds() const = 0;
  // Returns the report for the user about a rank whose process has ended. `judged` is the report of the launcher that
  // started the process. `by_us`: a launcher killed the process.
  virtual FailureReport told_of(const FailureReport& judged, bool by_us) const = 0;

  // Events of a rank's process: it is known, was stopped or continued, or has ended.
  virtual void set_process(int64_t rank, int64_t pid) = 0;
  virtual void set_stopped(int64_t rank, bool is_stopped) = 0;
  virtual void forget(int64_t rank) = 0;
  virtual void hear(int64_t rank, const FromRank& message) = 0;
};

// For ranks on this machine, which show their health in shared memory.
class SegmentWatch final : public EpochWatch {
 public:
  SegmentWatch(int64_t size, std::chrono::steady_clock::time_point job_started);

  int segment() const { return segment_.descriptor(); }

  void report(const FailureReport& report) override { health_.report(report); }
  std::optional<FailureReport> failure() const override { return health_.failure(); }
  std::optional<FailureReport> look(double seconds) override { return monitor_.look(seconds); }
  std::string place_of(int64_t rank) const override { return health_.place_of(rank); }
  bool has_joined(int64_t rank) const override { return health_.signs_of(rank).heartbeats > 0; }
  bool has_left(int64_t rank) const override { return health_.signs_of(rank).left; }
  bool is_stopped(int64_t rank) const override;
  double longest_step_seconds() const override;
  FailureReport told_of(const FailureReport& judged, bool by_us) const override;
  void set_process(int64_t rank, int64_t pid) override { health_.set_process(rank, pid); }
  void set_stopped(int64_t /*rank*/, bool /*is_stopped*/) override {}
  void forget(int64_t rank) override { monitor_.forget(rank); }
  void hear(int64_t /*rank*/, const FromRank& /*message*/) override {}

 private:
  SharedSegment segment_;
  SharedHealth health_;
  RankMonitor monitor_;
};

// For ranks on several machines, which monitor each other. A rank that leaves the epoch because of a failure reports
// this failure to its launcher.
class ReportsWatch final : public EpochWatch {
 public:
  explicit ReportsWatch(int64_t size) : ranks_(size) {}

  void report(const FailureReport& report) override;
  std::optional<FailureReport> failure() const override { return failure_; }
  std::optional<FailureReport> look(double seconds) override;
  std::string place_of(int64_t rank) const override { return ranks_.at(rank).place; }
  bool has_joined(int64_t rank) const override { return ranks_.at(rank).joined; }
  bool has_left(int64_t rank) const override { return ranks_.at(rank).left; }
  bool is_stopped(int64_t rank) const override { return ranks_.at(rank).stopped; }
  double longest_step_seconds() const override { return longest_step_seconds_; }
  FailureReport told_of(const FailureReport& judged, bool by_us) const override;
  void set_process(int64_t rank, int64_t pid) override { ranks_.at(rank).pid = pid; }
  void set_stopped(int64_t rank, bool is_stopped) override;
  void forget(int64_t rank) override { set_stopped(rank, false); }
  void hear(int64_t rank, const FromRank& message) override;

 private:
  struct Rank {
    int64_t pid = 0;
    std::string place;                     // where it failed, if any rank has reported it
    std::optional<std::string> own_words;  // why it failed, in its own report
    bool joined = false;
    bool left = false;
    bool stopped = false;
    double stopped_seconds = 0;
  };

  std::vector<Rank> ranks_;
  std::optional<FailureReport> failure_;
  double longest_step_seconds_ = 0;
};

}  // namespace copus
