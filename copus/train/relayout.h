// Movement of all ranks' training state from one layout into another in memory: prepared beside training, carried out
// at a step boundary. Where ranks can read each other's memory every slice is copied once, by its receiver; elsewhere,
// and in memory of a GPU, the same slices travel as messages (relayout_messages.h).
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/comm/shared_memory/state_arena.h"
#include "copus/comm/world.h"
#include "copus/model/state_memory.h"
#include "copus/placement/bucket_offsets.h"
#include "copus/placement/relayout_plan.h"
#include "copus/train/obstacle.h"
#include "copus/train/relayout_messages.h"

namespace copus {

// Everything that a rank knows of a move before it begins.
struct PreparedRelayout {
  RelayoutPlan plan;
  std::vector<LocalParameter> parameters;  // of this rank in the new layout
  std::vector<BucketOffsets> buckets;      // likewise
  std::optional<Obstacle> veto;            // what keeps this rank from taking part
  double seconds = 0;                      // seconds that the preparation took
};

// Offsets of every rank's state in its arena.
class StateAddresses {
 public:
  StateAddresses() = default;
  // Exchanges the offsets; every rank calls it.
  StateAddresses(const std::vector<BucketState>& state, const StateArena& arena, Communicator& everyone);

  // Offset in bytes of the tensor that the plan calls a buffer.
  int64_t offset(int64_t rank, int64_t bucket, StateKind kind) const;

 private:
  std::vector<std::vector<int64_t>> offsets_;  // by rank: those of all kinds of the first bucket, of the second, ...
};

// Moves the state of one rank; all ranks of the world do so together.
class StateMover {
 public:
  // Puts state into arenas with `shares_memory`, if all ranks can read each other's. Refers to `world` for its whole
  // life.
  StateMover(World& world, at::Device device, bool shares_memory);

  // The memory that state has to be allocated from.
  StateMemory& memory() { return *memory_; }
  bool has_arena() const { return arena_ != nullptr; }

  // Tells the other ranks where this rank's state lies. Every rank calls it when its state has been allocated, and
  // after every move.
  void settle(const std::vector<BucketState>& state);

  // Plans the move of `state`, reserves its memory and looks up the other ranks' pages, on a thread of its own. The
  // state stays where it is until then.
  std::future<PreparedRelayout> prepare(const RelayoutRequest& request, const std::vector<BucketState>& state,
                                        at::ScalarType compute_dtype) const;

  // Replaces the buckets of the old layout, which have no gradients, by those of the new one. Compute weights that are
  // not the masters, and the gradients, are left to the caller. `in_round` is told each round that begins, as "round 2
  // of 5". Returns the state bytes (as the plan counts them) at the worst moment on this rank.
  int64_t move(const PreparedRelayout& prepared, at::ScalarType compute_dtype, std::vector<BucketState>& state,
               const std::function<void(const std::string& round)>& in_round);

 private:
  void take_from_arenas(const RelayoutRound& round, const std::vector<BucketState>& to) const;
  World& world_;
  std::shared_ptr<StateArena> arena_;  // null: state travels as messages
  std::unique_ptr<StateMemory> memory_;
  StateAddresses addresses_;
  std::optional<RelayoutMessages> messages_;  // kept after a failed move too, since a rank may still send
};

}  // namespace copus
