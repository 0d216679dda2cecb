// Movement of all ranks' training state from one layout into another in memory: prepared beside training, carried out
// at a step boundary. Where all ranks can read each other's memory every slice is copied once, by its receiver; on
// several machines, and in memory of a GPU, the same slices travel as messages (relayout_messages.h).
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
#include "copus/model/state_memory.h"
#include "copus/placement/bucket_offsets.h"
#include "copus/placement/relayout_plan.h"
#include "copus/train/obstacle.h"
#include "copus/train/relayout_messages.h"

namespace copus {

// Everything that a rank knows of a move before it begins.
struct PreparedRelayout {
  RelayoutPlan plan;
  int64_t process = 0;                     // of the plan: this rank
  std::map<int64_t, RankPlan> stood_in;    // plans of the processes that it acts for beside itself
  std::vector<LocalParameter> parameters;  // of this rank in the new layout
  std::vector<BucketOffsets> buckets;      // likewise
  size_t num_slots = 0;                    // of the optimizer
  std::optional<Obstacle> veto;            // what keeps this rank from taking part
  double seconds = 0;                      // seconds that the preparation took
};

// Offsets in bytes of every rank's state in its arena.
class StateAddresses {
 public:
  StateAddresses() = default;
  // Exchanges the offsets; every rank calls it. `journal`: that of this rank's journal of updates, -1 where it keeps
  // none.
  StateAddresses(const std::vector<BucketState>& state, const StateArena& arena, int64_t journal,
                 Communicator& everyone);

  // The offset of the tensor that the plan calls a buffer.
  int64_t offset(int64_t rank, int64_t bucket, StateKind kind) const;
  int64_t gradient(int64_t rank, int64_t bucket) const;
  int64_t journal(int64_t rank) const;

  // All of them as numbers, and back.
  const std::vector<std::vector<int64_t>>& words() const { return offsets_; }
  explicit StateAddresses(std::vector<std::vector<int64_t>> words) : offsets_(std::move(words)) {}

 private:
  int64_t found(int64_t rank, int64_t bucket, int64_t which) const;

  // By rank: the journal's, the number of buffers of a bucket, then the offsets of the gradient and of all kinds of the
  // first bucket, of the second, ...; -1 for what is not there.
  std::vector<std::vector<int64_t>> offsets_;
};

// The training state of a layout's ranks, as it lies in the arenas of their processes.
struct StateInArenas {
  std::vector<int64_t> processes;  // by rank
  StateAddresses addresses;
};

// The processes of ranks that neither come nor go.
std::vector<int64_t> ranks_as_processes(const World& world);

// Moves the state of one rank; all ranks of the world do so together.
class StateMover {
 public:
  // Puts state into arenas with `shares_memory`, if the ranks of each machine can read each other's: `processes` and
  // `machines` are those of the ranks (StateArena::join). Refers to `world` for its whole life.
  StateMover(World& world, at::Device device, bool shares_memory, const std::vector<int64_t>& processes,
             const std::vector<int64_t>& machines = {});
  // Moves state that lies in arenas already, with the processes of the world's ranks. `stand_ins`: who acts for those
  // of the state's that have ended.
  StateMover(World& world, std::shared_ptr<StateArena> arena, StateInArenas state,
             const std::vector<int64_t>& processes, StandIns stand_ins = {});

  // The memory that state has to be allocated from.
  StateMemory& memory() { return *memory_; }
  bool has_arena() const { return arena_ != nullptr; }
  // Whether ranks copy from each other's arenas.
  bool reads_arenas() const { return reads_arenas_; }
  const std::shared_ptr<StateArena>& arena() const { return arena_; }
  const StateInArenas& state_in_arenas() const { return lies_in_; }

  // Tells the other ranks where this rank's state lies. Every rank calls it when its state has been allocated, and
  // after every move. `processes`: those of the ranks, `journal` as in StateAddresses.
  void settle(const std::vector<BucketState>& state, std::vector<int64_t> processes, int64_t journal);

  // Plans the move of `state`, reserves its memory and looks up the other ranks' pages, on a thread of its own. The
  // state stays where it is until then. `process` is that of the request. With `keeps_old` there is memory for both
  // layouts at once.
  std::future<PreparedRelayout> prepare(const RelayoutRequest& request, int64_t process,
                                        const std::vector<BucketState>& state, at::ScalarType compute_dtype,
                                        bool keeps_old) const;

  // Replaces the buckets of the old layout, which have no gradients, by those of the new one. Compute weights that are
  // not the masters, and the gradients, are left to the caller. `in_round` is told each round that begins, as "round 2
  // of 5". Returns the state bytes (as the plan counts them) at the worst moment on this rank.
  int64_t move(const PreparedRelayout& prepared, at::ScalarType compute_dtype, std::vector<BucketState>& state,
               const std::function<void(const std::string& round)>& in_round);

 private:
  void take_from_arenas(const RelayoutRound& round, const std::vector<BucketState>& to) const;
  World& world_;
  std::shared_ptr<StateArena> arena_;  // null: state lies elsewhere
  const bool reads_arenas_;            // else state travels as messages
  std::unique_ptr<StateMemory> memory_;
  StateInArenas lies_in_;
  const StandIns stand_ins_;
  std::optional<RelayoutMessages> messages_;  // kept after a failed move too, since a rank may still send
};

}  // namespace copus
