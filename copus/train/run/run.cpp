#include "copus/train/run/run.h"

#include <memory>
#include <optional>

#include "copus/data/dataset.h"
#include "copus/orchestrator/policies/starting_configuration.h"
#include "copus/train/run/device.h"
#include "copus/train/run/run_data.h"
#include "copus/train/run/run_leader.h"
#include "copus/train/run/run_loop.h"
#include "copus/train/run/run_setup.h"
#include "copus/train/step/stop_request.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

RunEnd run_training(RunPlan plan, double max_seconds, std::chrono::steady_clock::time_point start, World& world,
                    at::Device device, int64_t local_ranks) {
  const bool have_cores = set_up_process(plan.config, local_ranks);
  limit_memory(plan.config, device, world.size());
  plan.config.execution.precision = agree_on_precision(plan.config.execution.precision, device, world);
  const Dataset dataset = open_run_data(plan.config);
  resolve_documents(plan.config, dataset);
  if (!plan.checkpoint) plan.start = starting_configuration(plan.config);  // depends on the documents
  check_modelled_job(plan);
  check_all_ranks_begin_alike(plan, dataset, world);
  check_state_fits(plan.config, plan.start, device, local_ranks, world);

  const auto train_to_end = [&](Trainer& trainer) {
    load_first_state(plan, trainer, world);
    std::unique_ptr<RunLeader> leader;
    if (world.rank() == 0) leader = std::make_unique<RunLeader>(plan, trainer.state());

    StopRequest stop(max_seconds, start);
    StopRequest::tell_user(world.rank() == 0);
    world.everyone().barrier();  // all mistakes are found; no rank reads the run directory any more
    PassedBoundary passed = begin_run(plan, dataset, trainer, world, have_cores, leader.get());
    return *RunLoop(plan, dataset, trainer, world, stop, leader.get(), nullptr).until_end(passed);
  };
  return with_trainer(std::make_unique<Trainer>(plan.config, plan.start, dataset, device, world), train_to_end);
}

}  // namespace copus
