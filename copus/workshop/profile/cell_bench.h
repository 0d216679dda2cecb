// What steps of a configuration take, in time and memory, when they are run: the program itself, without what comes
// between steps.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "copus/comm/world.h"
#include "copus/config/run_config.h"

namespace copus {

// Steps that come first and are not counted: memory is new to them.
inline constexpr int64_t warm_up_steps = 2;

struct CellMeasurements {
  Precision precision = Precision::automatic;  // that was trained in
  std::vector<double> step_seconds;            // on the clock that the configuration names
  int64_t peak_bytes = 0;                      // of tensors, on the rank that held most in these steps
};

// Trains as `config` says, with fresh weights, for warm_up_steps and `steps` more, without evaluation, checkpoints or
// any file. Every rank of `world`, which has as many as the layout, calls it alike; all get the same. `local_rank` is
// the rank's number among the `local_ranks` of this machine. Throws UserError as run_training does.
CellMeasurements measure_cell(RunConfig config, int64_t steps, std::unique_ptr<World> world, int64_t local_rank,
                              int64_t local_ranks);

}  // namespace copus
