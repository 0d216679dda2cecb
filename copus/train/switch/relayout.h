// Moves the training state of all ranks from one layout into another, in memory. The move is prepared while training
// continues, and carried out at a step boundary. If all ranks can read each other's memory, the receiver copies every
// slice once. Between machines and in GPU memory the same slices travel as messages (relayout_messages.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/comm/shared_memory/state_arena.h"
#include "copus/comm/world.h"
#include "copus/model/memory/state_memory.h"
#include "copus/placement/bucket_offsets.h"
#include "copus/placement/relayout_plan.h"
#include "copus/train/step/obstacle.h"
#include "copus/train/switch/relayout_messages.h"

namespace copus {

// Everything that a rank knows about a move before it begins.
struct PreparedRelayout {
  RelayoutPlan plan;
  int64_t process = 0;                     // this rank's process in the plan
  std::map<int64_t, RankPlan> stood_in;    // plans of the other processes that this rank acts for
  std::vector<LocalParameter> parameters;  // of this rank in the new layout
  std::vector<BucketOffsets> buckets;      // of this rank in the new layout
  size_t num_slots = 0;                    // of the optimizer
  std::optional<Obstacle> veto;            // what prevents this rank from taking part
  double seconds = 0;                      // duration of the preparation
};

// Offsets in bytes of every rank's state within its arena.
class StateAddresses {
 public:
  StateAddresses() = default;
  // Exchanges the offsets; every rank calls this. `journal` is the offset of this rank's UpdateJournal, or -1 if it has
  // none.
  StateAddresses(const std::vector<BucketState>& state, const StateArena& arena, int64_t journal,
                 Communicator& everyone);

  // The offset of the tensor of this kind in a bucket.
  int64_t offset(int64_t rank, int64_t bucket, StateKind kind) const;
  int64_t gradient(int64_t rank, int64_t bucket) const;
  int64_t journal(int64_t rank) const;

  // All offsets as numbers, and back.
  const std::vector<std::vector<int64_t>>& words() const { return offsets_; }
  explicit StateAddresses(std::vector<std::vector<int64_t>> words) : offsets_(std::move(words)) {}

 private:
  int64_t found(int64_t rank, int64_t bucket, int64_t which) const;

  // Offsets by rank: first the offset of the journal and the number of buffers per bucket, then for each bucket the
  // offsets of the gradient and of all kinds of state. The offset of a tensor that does not exist is -1.
  std::vector<std::vector<int64_t>> offsets_;
};

// The training state of a layout's ranks in the arenas of their processes.
struct StateInArenas {
  std::vector<int64_t> processes;  // by rank
  StateAddresses addresses;
};

// The process of each rank if ranks neither join nor leave.
std::vector<int64_t> ranks_as_processes(const World& world);

// Moves the state of one rank, together with all ranks of the world.
class StateMover {
 public:
  // Puts state into arenas if `shares_memory` is set and the ranks of each machine can read each other's arenas.
  // `processes` and `machines`: the process and the machine of each rank (StateArena::join). Keeps a reference to
  // `world`.
  StateMover(World& world, at::Device device, bool shares_memory, const std::vector<int64_t>& processes,
             const std::vector<int64_t>& machines = {});
  // Moves state that is already in arenas. `processes`: the process of each rank of the world. `stand_ins`: the ranks
  // that act for ended processes of the state's layout.
  StateMover(World& world, std::shared_ptr<StateArena> arena, StateInArenas state,
             const std::vector<int64_t>& processes, StandIns stand_ins = {});

  // The memory from which state must be allocated.
  StateMemory& memory() { return *memory_; }
  bool has_arena() const { return arena_ != nullptr; }
  // Whether ranks copy from each other's arenas.
  bool reads_arenas() const { return reads_arenas_; }
  const std::shared_ptr<StateArena>& arena() const { return arena_; }
  const StateInArenas& state_in_arenas() const { return lies_in_; }

  // Sends the addresses of this rank's state to the other ranks. Every rank calls it when its state has been allocated,
  // and after every move. `processes`: the process of each rank; `journal` as in StateAddresses.
  void settle(const std::vector<BucketState>& state, std::vector<int64_t> processes, int64_t journal);

  // Plans the move of `state`, reserves memory for it and maps the other ranks' pages, on a separate thread. The state
  // must not be reallocated meanwhile. `process`: this rank's process in the request. `keeps_old`: both layouts are in
  // memory at once.
  std::future<PreparedRelayout> prepare(const RelayoutRequest& request, int64_t process,
                                        const std::vector<BucketState>& state, at::ScalarType compute_dtype,
                                        bool keeps_old) const;

  // Replaces the buckets of the old layout, which must have no gradients, by the buckets of the new layout. Returns the
  // peak of this rank's state in bytes, as the plan counts it. The caller allocates gradients, and derives compute
  // weights unless they are the master weights. `in_round` is called at the start of each round, with text such as
  // "round 2 of 5".
  int64_t move(const PreparedRelayout& prepared, at::ScalarType compute_dtype, std::vector<BucketState>& state,
               const std::function<void(const std::string& round)>& in_round);

 private:
  void take_from_arenas(const RelayoutRound& round, const std::vector<BucketState>& to) const;
  World& world_;
  std::shared_ptr<StateArena> arena_;  // null: state lies elsewhere
  const bool reads_arenas_;            // otherwise state travels as messages
  std::unique_ptr<StateMemory> memory_;
  StateInArenas lies_in_;
  const StandIns stand_ins_;
  std::optional<RelayoutMessages> messages_;  // kept after a failed move too, since a rank may still be sending
};

}  // namespace copus
