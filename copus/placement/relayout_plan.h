// The plan of a re-layout: which elements of the training state each process takes from which other process, and in
// which order. After the last round every rank of the new layout has its complete state; memory stays low in between.
// Every process computes the same plan from the two strategies, without messages. The strategies may differ in size:
// processes may leave, join, or become another rank.
//
// Plans use one coordinate space: parameter name and element index, for each kind of state. A layout maps a rank to
// boxes (and with ZeRO to ranges of buckets); the plan is the intersection of two layouts. Holders of the same element
// are equivalent: replicas, or a tied copy of the head and its embedding.
//
// Plans omit buckets that have only a gradient. They deliver every element of every parameter once, and nothing else.
// The code that allocates a new buffer must zero its padding (find_padding).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/placement/bucket_offsets.h"
#include "copus/placement/placed_tensors.h"

namespace copus {

// The flat buffers of a bucket that persist between steps. Gradients are zero at a step boundary and do not move.
enum class StateKind : int64_t {
  // Weights in the master dtype (with ZeRO-3 only this rank's shard), if compute weights are the master weights (fp32).
  weights,
  master,      // this rank's shard; only with separate compute weights (bf16), which are rounded anew after the move
  first_slot,  // this rank's shard of the optimizer's first slot; further slots have the next values
};

constexpr StateKind slot_kind(size_t slot) {
  return static_cast<StateKind>(static_cast<int64_t>(StateKind::first_slot) + static_cast<int64_t>(slot));
}
// Lists the kinds of all buffers, for an optimizer with `num_slots` slots.
std::vector<StateKind> state_kinds(size_t num_slots);

// A copy of `rows` ranges of `count` elements, which are `from_stride` and `to_stride` elements apart. Positions count
// from the beginning of the shard or, for unsharded weights, of the bucket.
struct CopyRun {
  int64_t from = 0, to = 0, count = 0;
  int64_t rows = 1, from_stride = 0, to_stride = 0;
  bool operator==(const CopyRun&) const = default;
};

// The elements that one process takes from a buffer of an old bucket of `sender` into a buffer of a new bucket.
struct Transfer {
  int64_t sender = 0;    // process; may be the receiver
  int64_t receiver = 0;  // process
  StateKind kind = StateKind::weights;
  int64_t from_bucket = 0;  // index in the sender's old layout
  int64_t to_bucket = 0;    // index in the receiver's new layout
  std::vector<CopyRun> runs;
  int64_t num_elements() const;
};

// One round of one process: it allocates, takes elements, and releases after every process has taken its elements.
struct RelayoutRound {
  std::vector<int64_t> allocate;   // new buckets: allocates their buffers of every kind, but no gradients
  std::vector<Transfer> receives;  // in the order of to_bucket and kind
  std::vector<Transfer> sends;     // elements that other processes take; for transports that need a sender
  std::vector<int64_t> release;    // old buckets that no process reads any more
};

// The plan of one process. A process that is only in the old layout gives and releases; a process that is only in the
// new layout takes; a process in neither has empty rounds.
struct RankPlan {
  // A bucket that is the same in both layouts and stays in place: its index in the old and in the new layout. It is
  // neither allocated nor copied.
  struct Kept {
    int64_t from_bucket, to_bucket;
  };
  std::vector<Kept> kept;
  std::vector<RelayoutRound> rounds;  // the same number on every process
};

struct RelayoutPlan {
  int64_t num_rounds = 0;
  RankPlan mine;               // the plan of the process that computed it
  int64_t bytes_copied = 0;    // by all processes; includes copies within a process, but not kept buckets
  int64_t bytes_received = 0;  // the part of bytes_copied that crosses processes
  // The most state bytes of any process, with padding: before the re-layout, after it, and at the peak. State means
  // weights or master weights, and slots, but no gradients. The order of the copies guarantees that the peak is at most
  // peak_bound_bytes, which is max(before, after) plus k times the size of the largest bucket. Here k is the number of
  // such buckets that fit into an eighth of the state, but at least 1 (more for rare shapes).
  int64_t old_bytes = 0, new_bytes = 0, peak_bytes = 0, peak_bound_bytes = 0;
  std::vector<int64_t> peak_bytes_by_rank;  // by process, including numbers that are in neither layout
  // Parts of the model ("embedding", "layer 3", "head") with elements that only gone processes had. If not empty, the
  // plan cannot be executed.
  std::vector<std::string> missing;
  uint64_t hash = 0;  // equal on every process
};

// Everything on which a plan depends. A process's number is its rank in `from`. Processes with the number
// from.world_size() or a higher one held nothing.
struct RelayoutRequest {
  ModelDescription model;
  int64_t sequence_length = 0;
  ParallelStrategy from, to;
  StateRecipe recipe;  // the tensors of the training state
  // Process p is on node p / ranks_per_node; 0: all are on one node. Senders on the receiver's node are preferred.
  int64_t ranks_per_node = 0;
  // By rank of `to`: the process that becomes this rank. Empty: process r becomes rank r.
  std::vector<int64_t> to_processes = {};
  // Processes of `from` that have ended. The state of `lost` processes can still be read, as a last resort; the state
  // of `gone` processes cannot.
  std::vector<int64_t> lost = {}, gone = {};
};

// Returns the plan of a process, which may be in either layout, in both or in neither. Throws InternalError
// - for a negative process,
// - if to_processes does not assign distinct processes to all ranks of `to`,
// - if a lost or gone process is not in `from`, or becomes a rank of `to`.
RelayoutPlan plan_relayout(const RelayoutRequest& request, int64_t process);

// Returns a lower bound on the seconds of the plan's messages on a cluster's links: the time of the busiest process's
// bytes, plus one latency per round. Sending and receiving overlap, and so do links within and between nodes (node =
// process / cluster.ranks_per_node), so the slowest of these counts. 0 if no process takes anything from another. Used
// by clocks that model links, and to predict the cost of the first switch.
double relayout_seconds(const RelayoutRequest& request, const ClusterDescription& cluster);

}  // namespace copus
