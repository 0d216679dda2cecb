#include "copus/workshop/profile/cell_bench.h"

#include <stdexcept>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/timed/timed_world.h"
#include "copus/data/dataset.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/model/memory/device_memory.h"
#include "copus/train/run/device.h"
#include "copus/train/run/run_data.h"
#include "copus/train/trainer/trainer.h"
#include "copus/workshop/profile/cell_steps.h"

namespace copus {

CellMeasurements measure_cell(RunConfig config, int64_t steps, std::unique_ptr<World> joined, int64_t local_rank,
                              int64_t local_ranks) {
  const at::Device device = find_device(config.execution.device, local_rank, joined->size());
  joined = connect_devices(std::move(joined), device, config.wait_limit);
  joined = with_links(std::move(joined), config.cluster.description, config.cluster.clock);
  install_caching_allocator();
  configure_aten(config.execution.threads, local_ranks);
  return measure_steps(std::move(config), steps, device, *joined);
}

CellMeasurements measure_steps(RunConfig config, int64_t steps, at::Device device, World& world) {
  config.execution.precision = agree_on_precision(config.execution.precision, device, world);
  const Dataset dataset = open_run_data(config);
  auto trainer = std::make_unique<Trainer>(config, dataset, device, world);
  CellMeasurements measured{.precision = config.execution.precision, .step_seconds = {}};
  const auto run_steps = [&](Trainer& of_cell) {
    for (int64_t step = 0; step < warm_up_steps + steps; ++step) {
      if (step == warm_up_steps) reset_peak_device_memory(device);
      const double seconds = of_cell.step().step_seconds;
      if (step >= warm_up_steps) measured.step_seconds.push_back(seconds);
    }
    measured.peak_bytes = device_memory(device).peak_used_bytes;
    world.everyone().all_reduce(&measured.peak_bytes, 1, DataType::int64, Reduction::maximum);
  };
  try {
    with_trainer(std::move(trainer), run_steps);
  } catch (const UserError& error) {  // concerns only this cell, such as too little memory: the cell is left out
    throw std::runtime_error(error.what());
  }
  return measured;
}

}  // namespace copus
