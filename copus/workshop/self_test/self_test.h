// Whether a job's ranks, links and layouts work where it runs, in about a minute: what `copus selftest` prints.
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

// The device that ranks started without a word about it compute on: "cuda" where this build's libtorch has it and this
// machine a device, else "cpu".
std::string usual_device();

// How many ranks to start on this machine where nobody says: one for each GPU where there are several, else up to 8 as
// there are cores.
int64_t usual_ranks(const std::string& device);

struct SelfTestOptions {
  std::string device = "cpu";  // as train.device
  std::string corpus;          // a text to train on
  double seconds = 60;         // what is optional is left out beyond them
  double wait_seconds = 120;   // that a rank waits for another
  int64_t local_rank = 0, local_ranks = 1;
  uint64_t seed = 1;  // of the random numbers that collectives repeat
};

struct RankPlace {
  std::string host, device;
  int64_t local_rank = 0;
  double clock_offset_seconds = 0;  // of the host's clock against that of rank 0's, as messages between them show it
};

// All groups of a family, in one kind of memory.
struct GroupCheck {
  GroupFamily family;
  std::string memory;                      // "host", or the device
  int64_t wrong_ranks = 0;                 // of all ranks
  std::vector<std::string> failures = {};  // on rank 0: which group, which rank, what it expected and found
};

// One operation in all groups of a family at once. Bandwidths are those of NCCL's tests (nccl-tests, PERFORMANCE.md).
struct GroupSpeed {
  GroupFamily family;
  std::string operation;                        // "all-reduce", "all-gather", "message"
  int64_t bytes = 0;                            // of the whole vector
  std::vector<double> seconds = {};             // of each group, as its slowest member saw it
  double median_seconds = 0;                    // of the groups
  double algorithm_bandwidth = 0;               // bytes/s: bytes / median_seconds
  double bus_bandwidth = 0;                     // bytes/s over the slowest link, whatever the number of members
  std::vector<std::vector<int64_t>> slow = {};  // groups that have less than half of the median's bandwidth
};

struct RelayoutCheck {
  SwitchReport report;
  std::string failure;  // empty: the state's hash is as it was
};

// A few steps in one layout, beside those of rank 0 alone.
struct LayoutCheck {
  ParallelStrategy strategy;
  std::vector<double> losses;
  double relative_difference = 0;  // the largest, of losses, from rank 0 alone
  bool bitwise = false;            // whether the rule is that losses equal those of the layout's plain form to the bit
  std::string failure = {};        // empty: as the rule says (docs/design.md, section 6)
};

// Hears what is found, as soon as it is, on every rank. Numbers are the same on all ranks.
class SelfTestListener {
 public:
  virtual ~SelfTestListener() = default;

  // `gpu_connection`: how GPUs communicate, as the end of a sentence: "; GPUs by NCCL 2.28.9", or nothing. `places`: of
  // all ranks, on rank 0. `seed`: SelfTestOptions::seed.
  virtual void introduce(const std::string& gpu_connection, const std::vector<RankPlace>& places, uint64_t seed) = 0;
  virtual void add(const std::vector<GroupCheck>& checks) = 0;
  virtual void add(const std::vector<LayoutCheck>& checks) = 0;
  virtual void add(const std::vector<RelayoutCheck>& checks) = 0;
  virtual void add(const std::vector<GroupSpeed>& speeds) = 0;
  // What communicators between GPUs took; only where there are any.
  virtual void add(const CommunicatorCosts& costs) = 0;
  // `is_shortened`: there was no time for all layouts or speeds.
  virtual void finish(bool is_shortened, double seconds) = 0;

  // Whether nothing has failed so far.
  virtual bool passed() const = 0;
};

// Tests everything; every rank calls it. Throws UserError where the device is not to be had.
void run_self_test(const SelfTestOptions& options, std::unique_ptr<World> world, SelfTestListener& listener);

}  // namespace copus
