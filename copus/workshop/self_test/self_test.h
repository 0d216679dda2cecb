// The tests of `copus selftest`: do a job's ranks, links and layouts work on their machines? They take about a minute.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "copus/comm/world.h"
#include "copus/description/parallel_strategy.h"
#include "copus/orchestrator/observation.h"
#include "copus/workshop/self_test/groups.h"

namespace copus {

// The default device of ranks: "cuda" if this build's libtorch supports it and this machine has a device, otherwise
// "cpu".
std::string usual_device();

// The default number of ranks on this machine: one for each GPU if there are several, otherwise the number of cores, at
// most 8.
int64_t usual_ranks(const std::string& device);

struct SelfTestOptions {
  std::string device = "cpu";  // as train.device
  std::string corpus;          // a text to train on
  double seconds = 60;         // after this time, optional parts are skipped
  double wait_seconds = 120;   // how long a rank waits for another
  int64_t local_rank = 0, local_ranks = 1;
  uint64_t seed = 1;  // of the random numbers for repeated collectives
};

struct RankPlace {
  std::string host, device;
  int64_t local_rank = 0;
  double clock_offset_seconds = 0;  // this host's clock minus rank 0's, measured by messages between the two
};

// The result of checking all groups of a family, in one kind of memory.
struct GroupCheck {
  GroupFamily family;
  std::string memory;                      // "host", or the device
  int64_t wrong_ranks = 0;                 // of all ranks
  std::vector<std::string> failures = {};  // on rank 0: which group and rank, what it expected and found
};

// One operation in all groups of a family at once. Bandwidths are defined as in NCCL's tests (nccl-tests,
// PERFORMANCE.md).
struct GroupSpeed {
  GroupFamily family;
  std::string operation;                        // "all-reduce", "all-gather", "message"
  int64_t bytes = 0;                            // of the whole vector
  std::vector<double> seconds = {};             // of each group, measured by its slowest member
  double median_seconds = 0;                    // of the groups
  double algorithm_bandwidth = 0;               // bytes/s: bytes / median_seconds
  double bus_bandwidth = 0;                     // bytes/s over the slowest link, independent of the number of members
  std::vector<std::vector<int64_t>> slow = {};  // groups with less than half of the median bandwidth
};

struct RelayoutCheck {
  SwitchReport report;
  std::string failure;  // empty: the state's hash is unchanged
};

// A few steps in one layout, compared with rank 0 alone.
struct LayoutCheck {
  ParallelStrategy strategy;
  std::vector<double> losses;
  double relative_difference = 0;  // the largest relative difference of a loss from rank 0 alone
  bool bitwise = false;            // whether losses must equal those of the layout without its options to the bit
  std::string failure = {};        // empty if the losses agree as docs/design.md, section 6, requires
};

// Receives the findings on every rank, as soon as they exist. Numbers are the same on all ranks.
class SelfTestListener {
 public:
  virtual ~SelfTestListener() = default;

  // `gpu_connection`: how GPUs communicate, as the end of a sentence ("; GPUs by NCCL 2.28.9"), or empty. `places`:
  // where all ranks run; given only on rank 0. `seed`: SelfTestOptions::seed.
  virtual void introduce(const std::string& gpu_connection, const std::vector<RankPlace>& places, uint64_t seed) = 0;
  virtual void add(const std::vector<GroupCheck>& checks) = 0;
  virtual void add(const std::vector<LayoutCheck>& checks) = 0;
  virtual void add(const std::vector<RelayoutCheck>& checks) = 0;
  virtual void add(const std::vector<GroupSpeed>& speeds) = 0;
  // The cost of communicators between GPUs; called only if there are any.
  virtual void add(const CommunicatorCosts& costs) = 0;
  // `is_shortened`: whether there was too little time for all layouts or speeds.
  virtual void finish(bool is_shortened, double seconds) = 0;

  // Whether nothing has failed so far.
  virtual bool passed() const = 0;
};

// Runs all tests; every rank calls it. Throws UserError if the device is not available.
void run_self_test(const SelfTestOptions& options, std::unique_ptr<World> world, SelfTestListener& listener);

}  // namespace copus
