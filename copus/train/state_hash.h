// A hash of everything that a move must not change: weights, the optimizer's slots, counters, position in the data. It
// is a sum over logical elements, so that it is the same in every layout, and the same as that of a checkpoint's whole
// tensors.
//
// Beside the sum in which each element counts once there is one of all copies that ranks hold: data-parallel copies,
// tensor-parallel replicas, both sides of a tied embedding, gathered weights. Each counted element is taken off it as
// often as its layout has copies of it, so that zero is left where all copies are the same bits. That needs no groups
// and no second message: whatever differs anywhere shows in one sum over all ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/description/model_description.h"
#include "copus/model/state_memory.h"
#include "copus/placement/relayout_plan.h"
#include "copus/placement/sharding.h"
#include "copus/train/training_state.h"

namespace copus {

// Hash of `values`, the elements from `first_index` on of a parameter's state; hashes of stretches are added up.
uint64_t hash_elements(StateKind kind, const std::string& parameter, int64_t first_index,
                       std::span<const float> values);

// Hash of the counters and the noise averages; times, and the configuration with the factors that change with it, are
// left out.
uint64_t hash_counters(const TrainingState& state);

// The hash of a model's training state, by parameter and kind of state, so that damage has a name. Ranks add what they
// hold, each rank of a layout once, and then add up.
class StateHash {
 public:
  StateHash(const ModelDescription& model, const std::vector<OptimizerSlot>& slots);

  // Adds the state of the rank at this place; gradients may be missing. Without `has_compute_weights` those that are
  // not the master weights are left out, where they are yet to be derived from these.
  void add_rank(const Placement& placement, const std::vector<BucketState>& state, bool has_compute_weights);

  // Adds where training stands, as member `rank` of so many knows it; its optimizer has made `updates`.
  void add_counters(const TrainingState& state, int64_t updates, int64_t rank, int64_t ranks);

  // Adds up what the members have added; equal on all of them then. Every member calls it.
  void add_up(Communicator& everyone);

  // The following are of a hash that was added up.

  // Hash of the logical state.
  uint64_t value() const;
  // What does not fit together in the state: copies that differ, compute weights that are not the rounding of the
  // master weights, counters, padding. Empty where all is well.
  std::optional<std::string> damage() const;
  // The same, or else what differs from the state before.
  std::optional<std::string> damage_since(const StateHash& before) const;

 private:
  int64_t counted(int64_t parameter, StateKind kind) const;
  int64_t copies(int64_t parameter, StateKind kind) const;
  std::string name_of(StateKind kind) const;

  ModelDescription model_;
  std::vector<StateKind> kinds_;
  std::vector<std::string> slots_;       // names
  std::vector<std::string> parameters_;  // names
  std::unordered_map<std::string, int64_t> places_;
  std::vector<uint64_t> words_;  // counters, their copies, padding, then by parameter and kind
};

}  // namespace copus
