// The parts of the self-test, which share a world and a time limit.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "copus/base/process/monotonic_seconds.h"
#include "copus/comm/world.h"
#include "copus/workshop/self_test/self_test.h"

namespace copus {

class TimeLimit {
 public:
  // Keeps a reference to `world`.
  TimeLimit(double seconds, World& world)
      : seconds_(seconds), begin_(monotonic_seconds()), everyone_(world.everyone()) {}

  double seconds() const { return seconds_; }

  // Returns whether less than `share` of the time is left, by rank 0's clock. Every rank calls this, and all get the
  // same result.
  bool is_over(double share = 0) {
    int64_t over = monotonic_seconds() - begin_ > (1 - share) * seconds_ ? 1 : 0;
    everyone_.broadcast(&over, 1, DataType::int64, 0);
    was_over_ = was_over_ || over == 1;
    return over == 1;
  }
  // Whether is_over() has ever returned true.
  bool was_over() const { return was_over_; }

 private:
  double seconds_, begin_;
  Communicator& everyone_;
  bool was_over_ = false;
};

// The parts of the test, which every rank calls. check_relayouts visits the layouts of the job, returns to the first
// one, and compares the hash of the training state before and after each re-layout. `seed` determines the random
// numbers on which collectives are repeated.
std::vector<GroupCheck> check_groups(at::Device memory, uint64_t seed, World& world);
std::vector<GroupSpeed> measure_groups(at::Device memory, TimeLimit& limit, World& world);
std::vector<RelayoutCheck> check_relayouts(const std::string& corpus, at::Device device, TimeLimit& limit,
                                           World& world);
std::vector<LayoutCheck> check_layouts(const std::string& corpus, at::Device device, TimeLimit& limit, World& world);

}  // namespace copus
