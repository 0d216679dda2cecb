// Health in memory that all ranks of one machine share: a state for each rank, and the one failure that ends the job.
// Nobody takes a lock that a rank could die holding: a rank writes only its own state, and a failure counts once one
// atomic word names the state in which it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "copus/comm/health.h"

namespace copus {

// The cause that report_own_error() gives.
inline constexpr const char* own_error_cause = "it ended with an error of its own";

// The bytes of the region that the health of `size` ranks takes. It is aligned to 64, and all zero before the first
// use.
int64_t health_bytes(int64_t size);

// What one rank shows of itself to the others.
struct RankSigns {
  int64_t pid = 0;          // 0: not known yet
  uint64_t heartbeats = 0;  // 0: sends none (yet)
  bool left = false;        // it has ended its part in good order
  uint64_t progress = 0;    // grows with each place and with each end of a wait
  bool waiting = false;
  double expected_step_seconds = 0;
};

class SharedHealth : public Health {
 public:
  // `rank`: one of the ranks, or `size` for the launcher, which watches over them. The region outlives this.
  SharedHealth(std::byte* region, int64_t rank, int64_t size);

  void set_place(std::string_view place) override;
  void set_expected_step_seconds(double seconds) override;
  void begin_wait() override;
  void end_wait() override;
  void report(const FailureReport& report) override;
  std::optional<FailureReport> failure() const override;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  // What another rank last said of itself.
  std::string place_of(int64_t rank) const;
  RankSigns signs_of(int64_t rank) const;

  // A watched rank (watchdog.h) shows that its process is there. After leave() nobody expects that of it any more.
  void beat();
  void leave();

  // The launcher says that it is there: it sees processes end, and tells the user what failed. Without one, the watched
  // rank that is first to report a failure does so on stderr.
  void become_launcher();
  void set_process(int64_t rank, int64_t pid);
  bool has_launcher() const;

  // What a rank that is ended by an error of its own does in place of report(). It tells the user itself.
  void report_own_error();

 private:
  struct RankState;
  struct Region;

  Region& region_;
  const int64_t rank_;
  const int64_t size_;
  std::mutex mutex_;  // among the threads of this rank
  bool reported_ = false;

  static Region& region_at(std::byte* address);
  RankState& state_of(int64_t rank) const;
  bool claim(const FailureReport& report);
  friend int64_t health_bytes(int64_t size);
};

}  // namespace copus
