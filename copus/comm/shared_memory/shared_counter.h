// Counters in shared memory on which threads of any process can wait. No wake-up is lost, and no wait spins for longer
// than a context switch takes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "copus/comm/health.h"

namespace copus {

// Lives in shared memory, initially all zero. Only one thread at a time writes it. The value only increases, until it
// wraps.
class SharedCounter {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  bool reached(uint32_t target) const { return static_cast<int32_t>(value() - target) >= 0; }

  // A thread that sees the new value also sees everything that was written before it.
  void publish(uint32_t value);

  // Returns when the counter has reached `target`, or after `seconds` (less than one); it may also return earlier.
  void sleep(uint32_t target, double seconds);

 private:
  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> sleepers_;
};

// How the threads of a rank wait.
struct WaitPolicy {
  Health& health;
  double deadline_seconds;  // after it, missing ranks count as failed
  // How long to spin before sleeping. Spinning is fastest if every rank has its own core. Otherwise it keeps other
  // ranks from running.
  std::chrono::nanoseconds spin;
  int64_t yields;
};

// For a machine that has `ranks_here` ranks.
WaitPolicy wait_policy(Health& health, double deadline_seconds, int64_t ranks_here);

// One wait, perhaps for several counters in turn. The deadline counts from the beginning of the wait, without the time
// during which this process was stopped (Ctrl-Z).
class Wait {
 public:
  explicit Wait(const WaitPolicy& policy) : policy_(policy) {}
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // Returns false if the deadline has passed. Throws RankFailure if the job has failed.
  bool until(SharedCounter& counter, uint32_t target);

 private:
  const WaitPolicy& policy_;
  bool sleeps_ = false;
  double waited_seconds_ = 0;  // since it began to sleep
};

}  // namespace copus
