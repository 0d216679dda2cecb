// How long training stands still for a change of layout, beside what it is measured against: the bytes it moves at the
// speed of plain copies, and a checkpoint with a restart. What `copus bench relayout` prints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "copus/comm/world.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/orchestrator/observation.h"

namespace copus {

struct RelayoutBenchOptions {
  ModelDescription model;
  Configuration from, to;  // they need the same number of ranks
  int64_t rounds = 0;      // there and back
  std::string corpus;      // a text to train on
  std::filesystem::path checkpoints;
  std::string device = "cpu";  // or "cuda": the ranks of a machine share its GPUs
  int64_t local_rank = 0;
};

struct MeasuredSwitch {
  SwitchReport report;
  // Right after it, bytes/s of all ranks together, in one piece each: out of the next one's memory where ranks can read
  // each other's, otherwise sent to it.
  double copy_rate = 0;
  int64_t bound_bytes = 0;  // the switch's bytes that took this way: all of them, or those between ranks
};

struct RelayoutBenchResult {
  std::vector<MeasuredSwitch> there, back;
  // When the ranks, in `from`, began to write a checkpoint and when it was durable, on the machine's monotonic clock.
  double decided_at = 0, written_at = 0;
};

// Trains in `from`, changes to `to` and back, round after round, and writes a checkpoint at last. Every rank calls it;
// the result is that of rank 0. Throws InternalError where a switch is vetoed.
RelayoutBenchResult measure_relayout(const RelayoutBenchOptions& options, std::unique_ptr<World> world);

// Loads the checkpoint in `to`, in new processes. Returns when all ranks were ready to step, on the same clock.
double measure_restart(const RelayoutBenchOptions& options, std::unique_ptr<World> world);

}  // namespace copus
