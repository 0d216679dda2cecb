// Implements Health for ranks without shared memory. It holds the state of this rank and the rank's member of the tree
// along which ranks monitor each other (tree_member.h). Derived classes transport texts to the rank's neighbours.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "copus/comm/health.h"
#include "copus/comm/health/tree_member.h"

namespace copus {

class HeartbeatHealth : public Health {
 public:
  void set_place(std::string_view place) final;
  void set_expected_step_seconds(double seconds) final;
  void begin_wait() final;
  void end_wait() final;
  // Returns when the failed rank has been decided on, or soon after.
  void report(const FailureReport& report) override;
  std::optional<FailureReport> failure() const final;

  // The value that this rank has set with set_expected_step_seconds().
  double expected_step_seconds() const;
  // The last published place of a rank; empty if unknown here.
  std::string place_of(int64_t rank) const;

 protected:
  using Clock = std::chrono::steady_clock;

  HeartbeatHealth(int64_t rank, int64_t size, double wait_seconds, Clock::time_point started);

  int64_t rank() const { return member_.tree().rank(); }
  int64_t size() const { return member_.tree().size(); }

  // Protects all members below. Waiters on the condition are notified of every failure.
  std::mutex& mutex() const { return mutex_; }
  std::condition_variable& changed() { return changed_; }

  TreeMember& member() { return member_; }
  const TreeMember& member() const { return member_; }

  // Checks whether this rank makes progress, and calls the tree member's look(). Call it several times a second.
  void look(Clock::time_point now);
  bool has_failed() const { return failure_.has_value(); }
  // Only the first failure counts.
  void set_failure(const FailureReport& report);

  // Submits a report, wakes the thread that transports texts, and waits for the decision.
  void submit(const TreeMember::Decision& report);
  // Called with the mutex held when there are texts to send.
  virtual void wake() = 0;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  TreeMember member_;
  Clock::time_point progress_ = Clock::now();
  double expected_step_seconds_ = 0;
  int64_t waiting_ = 0;
  std::optional<FailureReport> failure_;
};

}  // namespace copus
