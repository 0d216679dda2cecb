// A training job whose processes are killed, stopped or damaged repeatedly. Tests whether it continues as if nothing
// had happened, and how soon.
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

// The result of one fault.
struct FaultOutcome {
  const FaultKind* kind = nullptr;
  std::string place;                       // where the struck process was, as it reported itself
  bool was_harmed = false;                 // whether the job had to heal or end
  std::optional<double> named_seconds{};   // from the fault until the job knew which rank had failed
  std::optional<double> healed_seconds{};  // from then (or from the fault) until all ranks trained
  std::optional<double> gone_seconds{};    // from the fault until no process of the job remained
  std::string failure{};                   // empty: as expected
};

// The result of a run that was struck by several faults.
struct FaultedRun {
  std::string layout;
  int64_t steps = 0;
  double relative_difference = 0;  // the largest relative difference of a loss from the run without faults
  std::string failure{};           // empty: every step is logged once, with the same samples and losses
};

class FaultListener {
 public:
  virtual ~FaultListener() = default;
  virtual void add(const FaultOutcome& outcome) = 0;
  virtual void add(const FaultedRun& run) = 0;
};

// Starts runs of this program, strikes their processes at random and at chosen moments (docs/parallelism.md, "When a
// rank fails"), and reports the results to the listener. Throws UserError if a run fails even without faults, and
// Interrupted (watched_job.h) if the user stops the test.
void run_fault_test(const FaultTestOptions& options, FaultListener& listener);

}  // namespace copus
