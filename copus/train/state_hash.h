// A hash of everything that a switch must not change: weights, moments, counters, position in the data. It is a sum
// over logical elements, so that it is the same in every layout, and the same as that of a checkpoint's whole tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "copus/model/state_memory.h"
#include "copus/placement/relayout_plan.h"
#include "copus/train/rank_model.h"
#include "copus/train/training_state.h"

namespace copus {

// Hash of `values`, the elements from `first_index` on of a parameter's state; hashes of stretches are added up.
// `kind`: master, exp_avg or exp_avg_sq.
uint64_t hash_elements(StateKind kind, const std::string& parameter, int64_t first_index,
                       std::span<const float> values);

// Hash of the counters and the noise averages; times, and the configuration with the factors that change with it, are
// left out.
uint64_t hash_counters(const TrainingState& state);

// Sum of both hashes over all ranks, each logical element once; equal on all of them. Every rank calls it.
uint64_t state_hash(const RankModel& model, const TrainingState& state, Communicator& everyone);

}  // namespace copus
