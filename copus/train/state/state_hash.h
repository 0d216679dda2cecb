// A hash of everything that a move must preserve: weights, the optimizer's slots, counters, and the position in the
// data. It is a sum over logical elements, so all layouts have the same hash, and so do a checkpoint's unsharded
// tensors.
//
// The first sum counts each element once. The second sum adds all copies that ranks hold: data-parallel copies,
// tensor-parallel replicas, both sides of a tied embedding, gathered weights. It subtracts each counted element as
// often as the layout has copies of it, so it is zero if all copies have the same bits. One sum over all ranks thus
// shows any difference between copies.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/description/model_description.h"
#include "copus/model/memory/state_memory.h"
#include "copus/placement/relayout_plan.h"
#include "copus/placement/sharding.h"
#include "copus/train/step/training_state.h"

namespace copus {

// Returns the hash of `values`, a parameter's state from element `first_index` on. The hash of an unsharded tensor is
// the sum of the hashes of its ranges.
uint64_t hash_elements(StateKind kind, const std::string& parameter, int64_t first_index,
                       std::span<const float> values);

// Returns the hash of counters and noise averages, without times, the configuration, and factors that depend on it.
uint64_t hash_counters(const TrainingState& state);

// The hash of a model's training state by parameter and kind of state, so that damage can be named. The process that
// holds a rank's state adds this state; then all processes call add_up().
class StateHash {
 public:
  StateHash(const ModelDescription& model, const std::vector<OptimizerSlot>& slots);

  // Adds the state of the rank at this place of the layout, with or without gradients. Without `has_compute_weights`
  // omits the compute weights, which have yet to be derived from the master weights.
  void add_rank(const Placement& placement, const std::vector<BucketState>& state, bool has_compute_weights);

  // Adds the counters of member `rank` of `ranks` members, whose optimizer has made `updates` updates.
  void add_counters(const TrainingState& state, int64_t updates, int64_t rank, int64_t ranks);

  // Sums what all members have added, with the same result on all of them. Every member calls it.
  void add_up(Communicator& everyone);

  // The following functions require add_up().

  // Returns the hash of the logical state.
  uint64_t value() const;
  // Describes inconsistencies of the state: copies that differ, compute weights that are not the rounding of master
  // weights, counters that differ between ranks, padding that is not zero. Empty if there are none.
  std::optional<std::string> damage() const;
  // Returns damage() or, if that is empty, the difference from the earlier state.
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
  std::vector<uint64_t> words_;  // counters, their copies, padding, then words by parameter and kind
};

}  // namespace copus
