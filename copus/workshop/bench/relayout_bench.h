// Measures for `copus bench relayout` how long training pauses for a change of layout, compared with the time of plain
// copies of the same bytes, and with a checkpoint and a restart.
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
  Configuration from, to;  // both have the same number of ranks
  int64_t rounds = 0;      // of switches to `to` and back
  std::string corpus;      // a text to train on
  std::filesystem::path checkpoints;
  std::string device = "cpu";  // or "cuda": the ranks of a machine share its GPUs
  int64_t local_rank = 0;
};

struct MeasuredSwitch {
  SwitchReport report;
  // Bytes/s of all ranks together, measured right after the switch, with one piece per rank. If ranks can read each
  // other's memory, each rank copies its piece from the next rank's memory; otherwise the previous rank sends it.
  double copy_rate = 0;
  int64_t bound_bytes = 0;  // the switch's bytes that are moved in this way: all of them, or those between ranks
};

struct RelayoutBenchResult {
  std::vector<MeasuredSwitch> there, back;
  // Times on the machine's monotonic clock: when the ranks, in layout `from`, started to write a checkpoint, and when
  // the checkpoint was durable.
  double decided_at = 0, written_at = 0;
};

// Trains in `from`, switches to `to` and back in every round, and finally writes a checkpoint. Every rank calls this.
// Use the result of rank 0. Throws InternalError if a switch is vetoed.
RelayoutBenchResult measure_relayout(const RelayoutBenchOptions& options, std::unique_ptr<World> world);

// Loads the checkpoint in layout `to`, in new processes. Returns the time at which all ranks were ready to step, on the
// same clock as RelayoutBenchResult.
double measure_restart(const RelayoutBenchOptions& options, std::unique_ptr<World> world);

}  // namespace copus
