// Set-up before a run's first step: process-wide settings, and checks that all ranks make together.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "copus/comm/world.h"
#include "copus/data/dataset.h"
#include "copus/train/run/run_plan.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

// Sets up this process's allocator and threads for a run. `local_ranks` ranks share the machine's cores. Returns
// whether every thread of these ranks has a core.
bool set_up_process(const RunConfig& config, int64_t local_ranks);

// Limits this process on a CPU to what a rank of `ranks` may use by the cluster's description. A policy or command may
// move the run to a layout that needs more memory than there is. Allocation then fails before the machine runs out.
void limit_memory(const RunConfig& config, at::Device device, int64_t ranks);

// Throws UserError if the job of a modelled clock does not fit into its devices' memory. These devices do not exist, so
// no allocation would fail.
void check_modelled_job(const RunPlan& plan);

// Bytes of weights, gradients and moments.
struct StateBytes {
  double of_rank = 0;
  double of_machine = 0;  // of all ranks on one machine
};

// Returns the bytes of a rank and of its machine. Pipeline ranks hold unequal parts. In jobs on several machines, each
// machine is assumed to hold a part of the whole state in proportion to its number of ranks.
StateBytes state_bytes_of(const RunConfig& config, const ParallelStrategy& strategy, int64_t rank, int64_t local_ranks);

// Checks that the layout splits no unit, a set of elements that an optimizer with these slots must update together,
// over several ranks. Throws UserError that names the tensor.
void check_units(const RunConfig& config, const Configuration& configuration, const std::vector<OptimizerSlot>& slots);

// Checks, on all ranks together and before any allocates, that the machine has enough memory for their training state.
// Otherwise the system would kill a process without a message. `local_ranks` ranks share the machine. Throws UserError
// that states the need. Does not check GPUs, which report lack of memory themselves.
void check_state_fits(const RunConfig& config, const Configuration& configuration, at::Device device,
                      int64_t local_ranks, World& world);

// Checks that all ranks begin with the same configuration and data. Ranks on several machines might have read different
// files. They would then wait for each other for ever, or train different models. Throws UserError.
void check_all_ranks_begin_alike(const RunPlan& plan, const Dataset& dataset, World& world);

// Loads the initial state from the run's checkpoint or from a model file, and releases the checkpoint's tensors. All
// ranks call it and verify the checkpoint together. Throws UserError if a file is invalid, or if ranks do not share the
// run directory.
void load_first_state(RunPlan& plan, Trainer& trainer, World& world);

// Returns whether ranks' computing times show which ranks are slow. Rank 0 decides for all. Computing times do not show
// it if ranks share cores, on GPUs (where the host knows only when it issued an operation), and on the modelled clock
// (where all ranks are equally fast).
bool agree_to_judge_speed(const RunConfig& config, at::Device device, bool have_cores, World& world);

}  // namespace copus
