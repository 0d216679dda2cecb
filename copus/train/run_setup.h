// What comes before a run's first step: the process' settings, and the checks that all ranks make together.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "copus/comm/world.h"
#include "copus/data/dataset.h"
#include "copus/train/run_plan.h"
#include "copus/train/trainer.h"

namespace copus {

// Sets up this process' memory and threads for a run. `local_ranks` share the machine's cores. Returns whether there is
// a core for each of their threads.
bool set_up_process(const RunConfig& config, at::Device device, int64_t local_ranks);

// Checks that the job of a modelled clock could begin: its devices are not there to refuse. Throws UserError.
void check_modelled_job(const RunPlan& plan);

// Bytes of weights, gradients and moments.
struct StateBytes {
  double of_rank = 0;
  double of_machine = 0;  // of all ranks of one machine
};

// What a rank holds, and the machine it is on. Ranks of a pipeline hold unequal parts; on several machines each counts
// as one that has its share of all.
StateBytes state_bytes_of(const RunConfig& config, const ParallelStrategy& strategy, int64_t rank, int64_t local_ranks);

// Checks that no rank of a layout holds a part of a unit that an optimizer with these slots updates at once. Throws
// UserError that names the tensor.
void check_units(const RunConfig& config, const Configuration& configuration, const std::vector<OptimizerSlot>& slots);

// Checks, together with all ranks and before any of them takes memory, that the machine has enough for their training
// state: where it has not, the system would end a process without a word. `local_ranks` share the machine. Throws
// UserError that says how much is wanted. A GPU refuses by itself.
void check_state_fits(const RunConfig& config, const Configuration& configuration, at::Device device,
                      int64_t local_ranks, World& world);

// Checks that all ranks begin alike. Ranks on several machines may have read other files, and would wait for each other
// for ever or train another model. Throws UserError.
void check_all_ranks_begin_alike(const RunPlan& plan, const Dataset& dataset, World& world);

// Gives a trainer the state that the run begins with: that of its checkpoint, which all ranks verify together, or of a
// model file. All ranks call it. Throws UserError for what is wrong with either, and where the ranks do not share the
// run directory.
void load_first_state(const RunPlan& plan, Trainer& trainer, World& world);

// Tells, alike on all ranks, whether the time that they compute shows which of them are slow: not where they share
// cores, nor on a GPU, whose rank knows when its host asked for an operation and not how long that took, nor on the
// modelled clock, whose ranks are all alike. Rank 0 decides, since its machine may not be like the others'.
bool agree_to_judge_speed(const RunConfig& config, at::Device device, bool have_cores, World& world);

}  // namespace copus
