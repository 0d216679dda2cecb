// Set-up before a run's first step: process-wide settings, and the checks that all ranks make together.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "copus/comm/world.h"
#include "copus/data/dataset.h"
#include "copus/train/run/run_plan.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

// Sets up this process' memory and threads for a run. `local_ranks` ranks share the machine's cores. Returns whether
// each of these ranks' threads has a core.
bool set_up_process(const RunConfig& config, at::Device device, int64_t local_ranks);

// Checks that the job of a modelled clock could begin. Its devices do not exist, so they cannot report a lack of memory
// themselves. Throws UserError.
void check_modelled_job(const RunPlan& plan);

// Bytes of weights, gradients and moments.
struct StateBytes {
  double of_rank = 0;
  double of_machine = 0;  // of all ranks of one machine
};

// The bytes that a rank holds, and the bytes that its machine holds. Ranks of a pipeline hold unequal parts. If the job
// runs on several machines, each machine counts as if it held a part of all state in proportion to its ranks.
StateBytes state_bytes_of(const RunConfig& config, const ParallelStrategy& strategy, int64_t rank, int64_t local_ranks);

// Checks that no rank of a layout holds only a part of a unit. A unit is a set of elements that an optimizer with these
// slots must update together. Throws UserError that names the tensor.
void check_units(const RunConfig& config, const Configuration& configuration, const std::vector<OptimizerSlot>& slots);

// Checks, together with all ranks and before any of them allocates, that the machine has enough memory for their
// training state. Without this check the system would kill a process without a message. `local_ranks` ranks share the
// machine. Throws UserError that states how much is needed. GPUs are not checked, since they report a lack of memory
// themselves.
void check_state_fits(const RunConfig& config, const Configuration& configuration, at::Device device,
                      int64_t local_ranks, World& world);

// Checks that all ranks begin with the same configuration and data. Ranks on several machines may have read different
// files; then they would wait for each other forever or train a different model. Throws UserError.
void check_all_ranks_begin_alike(const RunPlan& plan, const Dataset& dataset, World& world);

// Loads the state with which the run begins, from its checkpoint or from a model file. All ranks call it, and verify
// the checkpoint together. Throws UserError if the file is invalid, or if the ranks do not share the run directory.
void load_first_state(const RunPlan& plan, Trainer& trainer, World& world);

// Returns whether the computing time of ranks shows which ranks are slow; the answer is the same on all ranks. It does
// not if ranks share cores, on a GPU (the host knows when it issued an operation, not how long that took), and on the
// modelled clock (all its ranks are equally fast). Rank 0 decides, since the machines may differ.
bool agree_to_judge_speed(const RunConfig& config, at::Device device, bool have_cores, World& world);

}  // namespace copus
