// A hash of everything that a move must not change: weights, the optimizer's slots, counters, and the position in the
// data. It is a sum over logical elements, so every layout has the same hash, and a checkpoint's whole tensors have it
// too.
//
// The first sum counts each element once. A second sum counts all copies that ranks hold: data-parallel copies,
// tensor-parallel replicas, both sides of a tied embedding, gathered weights. Each counted element is subtracted from
// the second sum as often as its layout has copies of it, so the result is zero if all copies have the same bits. This
// needs no groups and no second message: one sum over all ranks shows any difference.
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

// Returns the hash of `values`, the elements of a parameter's state from `first_index` on. The hash of a whole tensor
// is the sum of the hashes of its ranges.
uint64_t hash_elements(StateKind kind, const std::string& parameter, int64_t first_index,
                       std::span<const float> values);

// Returns the hash of the counters and the noise averages. It leaves out times, the configuration, and the factors that
// change with the configuration.
uint64_t hash_counters(const TrainingState& state);

// The hash of a model's training state, by parameter and kind of state, so that damage can be named. Each rank of a
// layout is added once, on the process that holds its state; then all processes add up.
class StateHash {
 public:
  StateHash(const ModelDescription& model, const std::vector<OptimizerSlot>& slots);

  // Adds the state of the rank at this place of the layout; gradients may be missing. Without `has_compute_weights` it
  // leaves out the compute weights, which have yet to be derived from the master weights.
  void add_rank(const Placement& placement, const std::vector<BucketState>& state, bool has_compute_weights);

  // Adds the counters that member `rank` of `ranks` members has. Its optimizer has made `updates` updates.
  void add_counters(const TrainingState& state, int64_t updates, int64_t rank, int64_t ranks);

  // Sums what the members have added; the result is the same on all of them. Every member calls it.
  void add_up(Communicator& everyone);

  // The following require add_up().

  // Hash of the logical state.
  uint64_t value() const;
  // Describes the inconsistencies of the state; empty if there are none. It finds copies that differ, compute weights
  // that are not the rounding of the master weights, counters that differ between ranks, and padding that is not zero.
  std::optional<std::string> damage() const;
  // damage(), or else what differs from the earlier state.
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
