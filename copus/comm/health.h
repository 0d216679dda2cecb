// How the ranks of a job know of each other's health. Every rank says where it is; a watchdog thread sends heartbeats
// and looks at everybody else's. The first to see a failure reports it once for all; from then on every wait throws
// RankFailure, and a rank that does not notice in time is ended by its watchdog.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "copus/comm/rank_failure.h"

namespace copus {

// Where memory for them is fixed, this much is kept of a place and of a failure's cause, with the 0 that ends them.
inline constexpr size_t place_bytes = 96, cause_bytes = 256;

// Thread-safe.
class Health {
 public:
  virtual ~Health() = default;

  // Where this rank is, in words for a message; every change counts as progress.
  virtual void set_place(std::string_view place) = 0;

  // The length of a step as far as it is known. A rank without progress for ten of them, and for at least ten seconds,
  // counts as stalled. At first it is 0, which means that it is not known: then nothing counts as stalled (set-up,
  // evaluation, checkpoints).
  virtual void set_expected_step_seconds(double seconds) = 0;

  // Between these two this rank waits for others, and so is not the one that stalls.
  virtual void begin_wait() = 0;
  virtual void end_wait() = 0;

  // Ends the job. The first report counts, and later ones are dropped.
  virtual void report(const FailureReport& report) = 0;
  virtual std::optional<FailureReport> failure() const = 0;

  // Throws RankFailure once a failure has been reported.
  void check() const {
    if (const auto found = failure()) throw RankFailure(*found);
  }
};

// While it lives, this rank waits for others.
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
