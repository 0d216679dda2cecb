// The failure that ends a job from outside this rank: another rank died, was stopped, stalled or never came.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace copus {

// What is known of a failure: which rank, what it was doing, and why it counts as failed.
struct FailureReport {
  int64_t rank = -1;  // -1: the job as a whole, and no rank by itself
  std::string place;  // "step 12, backward of micro-batch 3"; may be empty
  std::string cause;  // "killed by signal 9 (Killed)", "no heartbeat for 3 s", "stalled: made no progress for 60 s"
  int64_t pid = 0;    // of the rank's process; 0: not known
  // The launcher, or the rank that saw it first, tells the user or has done so. Nobody else should.
  bool announced = false;
};

// Of a rank that was waited for at the start of a job.
FailureReport did_not_come(int64_t rank, double wait_seconds);

// "rank 3 (pid 1234) failed at step 12, backward of micro-batch 3: killed by signal 9 (Killed)"
std::string to_string(const FailureReport& report);

// Tells the user on stderr, in one line, why the job is ended.
void announce(const FailureReport& report);

class RankFailure : public std::runtime_error {
 public:
  explicit RankFailure(FailureReport report);
  const FailureReport& report() const { return report_; }

 private:
  FailureReport report_;
};

}  // namespace copus
