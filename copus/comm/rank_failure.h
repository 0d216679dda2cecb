// A failure outside this rank that ends its job: another rank died, was stopped, stalled or never joined.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace copus {

// Describes a failure: the rank, what it was doing, and why it is treated as failed.
struct FailureReport {
  int64_t rank = -1;  // -1: the job as a whole, not one rank
  std::string place;  // "step 12, backward of micro-batch 3"; may be empty
  std::string cause;  // "killed by signal 9 (Killed)", "no heartbeat for 3 s", "stalled: made no progress for 60 s"
  int64_t pid = 0;    // of the rank's process; 0: unknown
  // Whether the launcher, or the rank that noticed the failure first, reports it to the user. If so, other processes do
  // not.
  bool announced = false;
};

// The failure of a rank that others waited for at the start of a job.
FailureReport did_not_come(int64_t rank, double wait_seconds);

// "rank 3 (pid 1234) failed at step 12, backward of micro-batch 3: killed by signal 9 (Killed)"
std::string to_string(const FailureReport& report);

// Tells the user why the job ends, in one line on stderr.
void announce(const FailureReport& report);

class RankFailure : public std::runtime_error {
 public:
  explicit RankFailure(FailureReport report);
  const FailureReport& report() const { return report_; }

 private:
  FailureReport report_;
};

}  // namespace copus
