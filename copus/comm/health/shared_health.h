// Implements Health in memory that all ranks of one machine share: a state for each rank, and the one failure that ends
// the job. There is no lock, because a rank could die while holding it. Instead, a rank writes only its own state. A
// failure becomes valid when an atomic word is set to the rank whose state holds the failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "copus/comm/health.h"

namespace copus {

// The cause in the report of report_own_error().
inline constexpr const char* own_error_cause = "it ended with an error of its own";

// Returns the size in bytes of the health region for `size` ranks. The region must be aligned to 64 bytes and zero
// before its first use.
int64_t health_bytes(int64_t size);

// The signs of one rank that the others can see.
struct RankSigns {
  int64_t pid = 0;          // 0: unknown so far
  uint64_t heartbeats = 0;  // 0: sends none, or none yet
  bool left = false;        // it has ended in good order
  uint64_t progress = 0;    // increases with each new place and each end of a wait
  bool waiting = false;
  double expected_step_seconds = 0;
};

class SharedHealth : public Health {
 public:
  // `rank`: this rank or, in the launcher that monitors the ranks, `size`. The region must outlive this object.
  SharedHealth(std::byte* region, int64_t rank, int64_t size);

  void set_place(std::string_view place) override;
  void set_expected_step_seconds(double seconds) override;
  void begin_wait() override;
  void end_wait() override;
  void report(const FailureReport& report) override;
  std::optional<FailureReport> failure() const override;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  // The last published place of another rank.
  std::string place_of(int64_t rank) const;
  RankSigns signs_of(int64_t rank) const;

  // Sends a sign of life, for a rank with a watchdog (watchdog.h). After leave(), no signs of life are expected.
  void beat();
  void leave();

  // Announces that the ranks have a launcher, which sees processes end and reports failures to the user. Without a
  // launcher, the first rank with a watchdog that notices a failure prints it to stderr.
  void become_launcher();
  void set_process(int64_t rank, int64_t pid);
  bool has_launcher() const;

  // Called instead of report() by a rank that ends with an error of its own. It prints the error itself.
  void report_own_error();

 private:
  struct RankState;
  struct Region;

  Region& region_;
  const int64_t rank_;
  const int64_t size_;
  std::mutex mutex_;  // between the threads of this rank
  bool reported_ = false;

  static Region& region_at(std::byte* address);
  RankState& state_of(int64_t rank) const;
  bool claim(const FailureReport& report);
  friend int64_t health_bytes(int64_t size);
};

}  // namespace copus
