// A hash of everything that a switch must not change: weights, moments, counters, position in the data. A sum over
// logical elements, so that it is the same in every layout, and one that a checkpoint's whole tensors have as well.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "copus/model/state_memory.h"
#include "copus/placement/relayout_plan.h"
#include "copus/train/rank_model.h"
#include "copus/train/training_state.h"

namespace copus {

// Of `values`, the elements from `first_index` on of a parameter's state; hashes of stretches are added up. `kind`:
// master, exp_avg or exp_avg_sq.
uint64_t hash_elements(StateKind kind, const std::string& parameter, int64_t first_index,
                       std::span<const float> values);

// Of the counters, and of what the noise averages hold; not of the configuration and what goes with it, nor of times.
uint64_t hash_counters(const TrainingState& state);

// The sum of both over all ranks, each logical element once; equal on all of them. Every rank calls it.
uint64_t state_hash(const RankModel& model, const TrainingState& state, Communicator& everyone);

}  // namespace copus
