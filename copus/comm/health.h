// Declares how the ranks of a job monitor each other. Every rank states in words where it is (set_place). A watchdog
// thread sends heartbeats and checks the heartbeats of the other ranks. The first rank that notices a failure reports
// it for all. From then on, every wait on every rank throws RankFailure. If a rank does not notice the failure in time,
// its watchdog ends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "copus/comm/rank_failure.h"

namespace copus {

// The fixed sizes in memory of a place and of a failure's cause, including the terminating 0. Longer texts are
// truncated.
inline constexpr size_t place_bytes = 96, cause_bytes = 256;

// Thread-safe.
class Health {
 public:
  virtual ~Health() = default;

  // Sets where this rank is (its place), in words for a message. Every new place counts as progress.
  virtual void set_place(std::string_view place) = 0;

  // Sets the expected length of a step. A rank that makes no progress for ten steps, and for at least ten seconds, is
  // reported as stalled. The initial value 0 means unknown: during set-up, evaluation and checkpoints no rank is
  // reported as stalled.
  virtual void set_expected_step_seconds(double seconds) = 0;

  // Between these two calls this rank waits for others, so it does not count as stalled.
  virtual void begin_wait() = 0;
  virtual void end_wait() = 0;

  // Reports a failure, which ends the job. Only the first report counts.
  virtual void report(const FailureReport& report) = 0;
  virtual std::optional<FailureReport> failure() const = 0;

  // Throws RankFailure once a failure has been reported.
  void check() const {
    if (const auto found = failure()) throw RankFailure(*found);
  }
};

// Marks this rank as waiting for others while the object lives.
class WaitingForOthers {
 public:
  explicit WaitingForOthers(Health& health) : health_(health) { health_.begin_wait(); }
  WaitingForOthers(const WaitingForOthers&) = delete;
  WaitingForOthers& operator=(const WaitingForOthers&) = delete;
  ~WaitingForOthers() { health_.end_wait(); }

 private:
  Health& health_;
};

}  // namespace copus
