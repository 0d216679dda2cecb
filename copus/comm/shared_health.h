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

// The bytes of the region that the health of `size` ranks takes: aligned to 64, all zero before the first use.
int64_t health_bytes(int64_t size);

class SharedHealth : public Health {
 public:
  // As rank 0 .. size - 1, or as `size`: whoever watches over the ranks without being one. The region outlives it.
  SharedHealth(std::byte* region, int64_t rank, int64_t size);

  void set_place(std::string_view place) override;
  void set_expected_step_seconds(double seconds) override;
  void begin_wait() override;
  void end_wait() override;
  void report(const FailureReport& report) override;
  std::optional<FailureReport> failure() const override;

  // What another rank last said of itself.
  std::string place_of(int64_t rank) const;

 private:
  struct RankState;
  struct Region;

  Region& region_;
  const int64_t rank_;
  std::mutex mutex_;  // of the threads of this rank
  bool reported_ = false;

  static Region& region_at(std::byte* address);
  RankState& state_of(int64_t rank) const;
  friend int64_t health_bytes(int64_t size);
};

}  // namespace copus
