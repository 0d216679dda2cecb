// Measures time and memory of a configuration's steps by running the program itself, without the work between steps.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "copus/comm/world.h"
#include "copus/config/run_config.h"

namespace copus {

// Number of first steps that are not counted, because they touch new memory and are slower.
inline constexpr int64_t warm_up_steps = 2;

struct CellMeasurements {
  Precision precision = Precision::automatic;  // the precision of training
  std::vector<double> step_seconds;            // on the clock that the configuration names
  int64_t peak_bytes = 0;                      // of tensors, on the rank that held most in these steps
};

// Trains as `config` says, with fresh weights, for warm_up_steps and then `steps` steps, without evaluation,
// checkpoints or files. Every rank of `world`, which has as many ranks as the layout, calls this with the same
// arguments, and all get the same result. `local_rank` is the rank's number among the `local_ranks` ranks of this
// machine. Throws UserError as run_training does.
CellMeasurements measure_cell(RunConfig config, int64_t steps, std::unique_ptr<World> world, int64_t local_rank,
                              int64_t local_ranks);

}  // namespace copus
