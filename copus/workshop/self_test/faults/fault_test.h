// A training job that is harmed again and again: whether it goes on as if nothing had happened, and how soon.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "copus/workshop/self_test/faults/fault_kinds.h"

namespace copus {

inline constexpr int64_t batch_of_fault_test = 8;  // a multiple of the number of ranks

struct FaultTestOptions {
  int64_t faults = 0;
  int64_t ranks = 4;  // an even number
  uint64_t seed = 0;
  std::filesystem::path folder;  // for the runs
};

// What came of one fault.
struct FaultOutcome {
  const FaultKind* kind = nullptr;
  std::string place;                       // of the process that was struck, as it said itself
  bool was_harmed = false;                 // whether the job had to heal or to end
  std::optional<double> named_seconds{};   // from the fault until the job knew who has failed
  std::optional<double> healed_seconds{};  // from then on, or else from the fault, until all ranks were training
  std::optional<double> gone_seconds{};    // from the fault until no process of the job was left
  std::string failure{};                   // empty: as it should be
};

// What came of a run, which several faults have struck.
struct FaultedRun {
  std::string layout;
  int64_t steps = 0;
  double relative_difference = 0;  // the largest, of losses, from those of a run without faults
  std::string failure{};           // empty: every step is there once, of the same samples, with the same losses
};

class FaultListener {
 public:
  virtual ~FaultListener() = default;
  virtual void add(const FaultOutcome& outcome) = 0;
  virtual void add(const FaultedRun& run) = 0;
};

// Starts runs of this program, strikes their processes at random moments and at chosen ones (docs/parallelism.md, "When
// a rank fails"), and tells the listener what comes of it. Throws UserError where a run does not even work unharmed,
// and Interrupted (watched_job.h).
void run_fault_test(const FaultTestOptions& options, FaultListener& listener);

}  // namespace copus
