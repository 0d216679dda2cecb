// Counters in shared memory that threads of any process can wait for, without lost wake-ups and without spinning longer
// than a context switch takes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "copus/comm/health.h"

namespace copus {

// Lies in shared memory, all zero at first. One thread at a time writes it, only ever upwards, until it wraps.
class SharedCounter {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  bool reached(uint32_t target) const { return static_cast<int32_t>(value() - target) >= 0; }

  // Whoever sees the new value sees everything that was written before.
  void publish(uint32_t value);

  // Returns when the counter has reached `target`, after `seconds` (less than one), or earlier without a reason.
  void sleep(uint32_t target, double seconds);

 private:
  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> sleepers_;
};

// How the threads of a rank wait.
struct WaitPolicy {
  Health& health;
  double deadline_seconds;  // after it, whoever is missing counts as failed
  // Looking again at once is fastest while every rank has a core to itself. Otherwise it keeps others from running.
  std::chrono::nanoseconds spin;
  int64_t yields;
};

// For ranks of which `ranks_here` share this machine.
WaitPolicy wait_policy(Health& health, double deadline_seconds, int64_t ranks_here);

// One wait, perhaps for several counters one after another. The deadline counts from its beginning, without the time
// for which this process was stopped (Ctrl-Z).
class Wait {
 public:
  explicit Wait(const WaitPolicy& policy) : policy_(policy) {}
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // False where the deadline has passed. Throws RankFailure when the job has failed.
  bool until(SharedCounter& counter, uint32_t target);

 private:
  const WaitPolicy& policy_;
  bool sleeps_ = false;
  double waited_seconds_ = 0;  // since it had to sleep
};

}  // namespace copus
