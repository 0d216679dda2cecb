// Runs the steps of a cell, in a process that is set up and whose ranks are connected.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "copus/workshop/profile/cell_bench.h"

namespace copus {

// See measure_cell.
CellMeasurements measure_steps(RunConfig config, int64_t steps, at::Device device, World& world);

}  // namespace copus
