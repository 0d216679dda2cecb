// The plan of a re-layout: which elements of the training state each process takes from whom, and in which order, so
// that the state of every rank of the new layout is complete and memory stays small. Every process computes the same
// plan alone, from the two strategies. The two may be of different sizes: processes may leave, come, or become another
// rank.
//
// Plans use one coordinate space: parameter name and element index, for each kind of state. A layout maps a rank to
// boxes (and with ZeRO to stretches of buckets); the plan is the intersection of two layouts. Holders of the same
// element are equivalent: replicas, and a tied copy of the head and its embedding.
//
// Buckets that have only a gradient appear nowhere in a plan. Runs deliver every element of every parameter once and
// nothing else: the padding of a new buffer (find_padding) has to be zeroed by whoever allocates it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/placement/bucket_offsets.h"
#include "copus/placement/placed_tensors.h"

namespace copus {

// The flat buffers of a bucket that outlive a step. Gradients are zero at a step boundary and are not moved.
enum class StateKind : int64_t {
  // The bucket in the master dtype, with ZeRO-3 this rank's shard of it; only where the compute weights are the master
  // weights (fp32).
  weights,
  master,      // this rank's shard; only where they are not (bf16): compute weights are then derived after the move
  first_slot,  // this rank's shard of the optimizer's first slot; the kinds of the others follow
};

constexpr StateKind slot_kind(size_t slot) {
  return static_cast<StateKind>(static_cast<int64_t>(StateKind::first_slot) + static_cast<int64_t>(slot));
}
// Lists the kinds of all buffers under an optimizer with so many slots.
std::vector<StateKind> state_kinds(size_t num_slots);

// A copy of `rows` stretches of `count` elements, `from_stride` and `to_stride` apart. Positions are in the buffer of
// the kind: of the whole bucket for weights that are not cut, of the shard for all else.
struct CopyRun {
  int64_t from = 0, to = 0, count = 0;
  int64_t rows = 1, from_stride = 0, to_stride = 0;
  bool operator==(const CopyRun&) const = default;
};

// The elements that one process takes for one buffer of a new bucket from one buffer of an old bucket of `sender`.
struct Transfer {
  int64_t sender = 0;    // process; may be the receiver
  int64_t receiver = 0;  // process
  StateKind kind = StateKind::weights;
  int64_t from_bucket = 0;  // index in the sender's old layout
  int64_t to_bucket = 0;    // index in the receiver's new layout
  std::vector<CopyRun> runs;
  int64_t num_elements() const;
};

// One round on one process: it allocates, takes, and releases when every process has taken what it needs.
struct RelayoutRound {
  std::vector<int64_t> allocate;   // new buckets, whose state (every kind, not the gradient) begins to exist
  std::vector<Transfer> receives;  // in the order of to_bucket and kind
  std::vector<Transfer> sends;     // what other processes take from this one, for transports that need a sender
  std::vector<int64_t> release;    // old buckets that nobody reads any more
};

// The plan of one process. One that is only in the old layout gives and releases, one that is only in the new layout
// takes, and one in neither has empty rounds.
struct RankPlan {
  // A bucket that is the same in both layouts and stays in place (old index, new index): neither copied nor allocated.
  struct Kept {
    int64_t from_bucket, to_bucket;
  };
  std::vector<Kept> kept;
  std::vector<RelayoutRound> rounds;  // equally many on every process
};

struct RelayoutPlan {
  int64_t num_rounds = 0;
  RankPlan mine;               // plan of the process that asked
  int64_t bytes_copied = 0;    // by every process together; copies of one from itself count, kept buckets do not
  int64_t bytes_received = 0;  // the part of bytes_copied that comes from other processes
  // State bytes (weights or master, the optimizer's slots; no gradients), padding included, of the process that holds
  // most: before, after, and at the worst moment of the plan. peak_bound_bytes is what the order promises: max(before,
  // after) + k of the largest buckets. k is 1 but for rare shapes, or as many as are together an eighth of the state.
  int64_t old_bytes = 0, new_bytes = 0, peak_bytes = 0, peak_bound_bytes = 0;
  std::vector<int64_t> peak_bytes_by_rank;  // by process: all that are in either layout, and the numbers between
  // Parts of the model of which some element was on processes that are gone alone: "embedding", "layer 3", "head". The
  // plan is then of no use.
  std::vector<std::string> missing;
  uint64_t hash = 0;  // equal on every process
};

// The two strategies and what else a plan depends on. Processes are numbered by their rank in `from`; numbers from
// from.world_size() on held nothing.
struct RelayoutRequest {
  ModelDescription model;
  int64_t sequence_length = 0;
  ParallelStrategy from, to;
  StateRecipe recipe;  // of the training state
  // Process p is on node p / ranks_per_node; 0: one node for all. Senders on the receiver's node are preferred.
  int64_t ranks_per_node = 0;
  // By rank of `to`: the process that becomes it. Empty: process r becomes rank r.
  std::vector<int64_t> to_processes = {};
  // Processes of `from` that have ended. Of those that are lost the state can still be read, and elements are taken
  // from them only where nobody else has them; of those that are gone nothing can.
  std::vector<int64_t> lost = {}, gone = {};
};

// Returns the plan of a process, which may be in one layout, in both or in neither. Throws InternalError: a negative
// process; to_processes does not give each rank of `to` a process of its own; a process that is lost or gone is none of
// `from`, or becomes a rank of `to`.
RelayoutPlan plan_relayout(const RelayoutRequest& request, int64_t process);

// Returns a lower bound of the seconds that the plan's messages take on a cluster's links: the busiest process's bytes,
// in either direction, over its link within or between nodes (process / cluster.ranks_per_node), whichever takes
// longer, and one latency a round; 0 where no process takes anything from another. It serves clocks that show modelled
// links, and gives the cost of a switch before one was measured.
double relayout_seconds(const RelayoutRequest& request, const ClusterDescription& cluster);

}  // namespace copus
