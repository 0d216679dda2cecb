#include "copus/comm/shared_memory/shared_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <utility>

#include "copus/base/process/cores.h"

namespace copus {

namespace {

using std::chrono::steady_clock;

// A waiting thread checks the health of the job this often.
constexpr double slice_seconds = 0.1;
// A longer time between two checks means that the process was stopped, perhaps with the whole job.
constexpr double longest_slice_seconds = 0.5;

void pause_briefly() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  // Several processes share the word, so this must not be a FUTEX_*_PRIVATE operation. Errors need no handling, because
  // the caller checks the value again in any case.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

// A sleeper announces itself and then reads the value. The publisher writes the value and then checks for sleepers. All
// four accesses are sequentially consistent, so either the sleeper sees the new value or the publisher sees the
// sleeper.
void SharedCounter::publish(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex(value_, FUTEX_WAKE, INT_MAX, nullptr);
}

void SharedCounter::sleep(uint32_t target, double seconds) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = value_.load(std::memory_order_seq_cst);
  if (static_cast<int32_t>(seen - target) < 0) {
    const timespec timeout{0, static_cast<long>(std::clamp(seconds, 0.0, 0.999) * 1e9)};
    futex(value_, FUTEX_WAIT, seen, &timeout);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

WaitPolicy wait_policy(Health& health, double deadline_seconds, int64_t ranks_here) {
  const bool own_core = ranks_here <= usable_cores();
  return {health, deadline_seconds, std::chrono::microseconds(own_core ? 50 : 0), own_core ? 8 : 32};
}

Wait::~Wait() {
  if (sleeps_) policy_.health.end_wait();
}

bool Wait::until(SharedCounter& counter, uint32_t target) {
  // Ranks that never sleep must also notice a failure, even that of a rank they do not wait for.
  policy_.health.check();
  if (counter.reached(target)) return true;
  if (policy_.spin.count() > 0) {
    const auto end = steady_clock::now() + policy_.spin;
    do {
      for (int i = 0; i < 16; ++i) {
        pause_briefly();
        if (counter.reached(target)) return true;
      }
    } while (steady_clock::now() < end);
  }
  for (int64_t i = 0; i < policy_.yields; ++i) {
    sched_yield();
    if (counter.reached(target)) return true;
  }
  if (!std::exchange(sleeps_, true)) policy_.health.begin_wait();
  auto looked = steady_clock::now();
  while (!counter.reached(target)) {
    policy_.health.check();
    const auto now = steady_clock::now();
    const std::chrono::duration<double> passed = now - std::exchange(looked, now);
    waited_seconds_ += std::min(passed.count(), longest_slice_seconds);
    const double left = policy_.deadline_seconds - waited_seconds_;
    if (left <= 0) return false;
    counter.sleep(target, std::min(left, slice_seconds));
  }
  return true;
}

}  // namespace copus
