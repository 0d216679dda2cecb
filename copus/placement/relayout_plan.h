// The plan of a re-layout: which elements of the training state each process takes from which other process, and in
// which order. After it every rank of the new layout has its complete state, and memory stays low meanwhile. Every
// process computes the same plan by itself, from the two strategies. The strategies may have different sizes: processes
// may leave, join, or become another rank.
//
// Plans use one coordinate space: parameter name and element index, for each kind of state. A layout maps a rank to
// boxes (and with ZeRO to ranges of buckets); the plan is the intersection of two layouts. Holders of the same element
// are equivalent. They are replicas, or a tied copy of the head and its embedding.
//
// Plans do not contain buckets that have only a gradient. They deliver every element of every parameter once, and
// nothing else. The code that allocates a new buffer must zero its padding (find_padding).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/placement/bucket_offsets.h"
#include "copus/placement/placed_tensors.h"

namespace copus {

// The flat buffers of a bucket that survive a step. Gradients are zero at a step boundary and are not moved.
enum class StateKind : int64_t {
  // The weights of the bucket in the master dtype, with ZeRO-3 this rank's shard of them. Only if the compute weights
  // are the master weights (fp32).
  weights,
  master,      // this rank's shard; only with separate compute weights (bf16), which are derived after the move
  first_slot,  // this rank's shard of the optimizer's first slot; the kinds of the other slots follow
};

constexpr StateKind slot_kind(size_t slot) {
  return static_cast<StateKind>(static_cast<int64_t>(StateKind::first_slot) + static_cast<int64_t>(slot));
}
// Lists the kinds of all buffers with an optimizer that has `num_slots` slots.
std::vector<StateKind> state_kinds(size_t num_slots);

// A copy of `rows` ranges of `count` elements, `from_stride` and `to_stride` apart. For unsharded weights, positions
// count from the beginning of the whole bucket. Otherwise they count from the beginning of the shard.
struct CopyRun {
  int64_t from = 0, to = 0, count = 0;
  int64_t rows = 1, from_stride = 0, to_stride = 0;
  bool operator==(const CopyRun&) const = default;
};

// The elements that one process takes from one buffer of an old bucket of `sender` into one buffer of a new bucket.
struct Transfer {
  int64_t sender = 0;    // process; may be the receiver
  int64_t receiver = 0;  // process
  StateKind kind = StateKind::weights;
  int64_t from_bucket = 0;  // index in the sender's old layout
  int64_t to_bucket = 0;    // index in the receiver's new layout
  std::vector<CopyRun> runs;
  int64_t num_elements() const;
};

// One round on one process: it allocates, takes, and releases once every process has taken what it needs.
struct RelayoutRound {
  std::vector<int64_t> allocate;   // new buckets whose state (every kind, but not the gradient) is allocated
  std::vector<Transfer> receives;  // in the order of to_bucket and kind
  std::vector<Transfer> sends;     // what other processes take from this one, for transports that need a sender
  std::vector<int64_t> release;    // old buckets that no process reads any more
};

// The plan of one process. A process that is only in the old layout gives and releases, one that is only in the new
// layout takes, and one that is in neither has empty rounds.
struct RankPlan {
  // A bucket that is the same in both layouts and stays in place (old index, new index). It is neither copied nor
  // allocated.
  struct Kept {
    int64_t from_bucket, to_bucket;
  };
  std::vector<Kept> kept;
  std::vector<RelayoutRound> rounds;  // the same number on every process
};

struct RelayoutPlan {
  int64_t num_rounds = 0;
  RankPlan mine;               // plan of the process for which it was computed
  int64_t bytes_copied = 0;    // by all processes; copies within a process count, kept buckets do not
  int64_t bytes_received = 0;  // the part of bytes_copied that comes from other processes
  // The state bytes, including padding, of the process that holds most: before the re-layout, after it, and at the peak
  // of the plan. State means weights or master weights, and slots; gradients do not count. peak_bound_bytes is the
  // bound that the order guarantees: max(before, after) + k of the largest buckets. k is 1 except for rare shapes, or
  // the number of buckets that make up an eighth of the state.
  int64_t old_bytes = 0, new_bytes = 0, peak_bytes = 0, peak_bound_bytes = 0;
  std::vector<int64_t> peak_bytes_by_rank;  // by process: all that are in either layout, and the numbers in between
  // Parts of the model ("embedding", "layer 3", "head") with an element that only gone processes had. If there are any,
  // the plan cannot be used.
  std::vector<std::string> missing;
  uint64_t hash = 0;  // equal on every process
};

// The two strategies, and everything else that a plan depends on. Processes are numbered by their rank in `from`;
// processes from from.world_size() on held nothing.
struct RelayoutRequest {
  ModelDescription model;
  int64_t sequence_length = 0;
  ParallelStrategy from, to;
  StateRecipe recipe;  // of the training state
  // Process p is on node p / ranks_per_node; 0: all are on one node. Senders on the receiver's node are preferred.
  int64_t ranks_per_node = 0;
  // By rank of `to`: the process that becomes this rank. Empty: process r becomes rank r.
  std::vector<int64_t> to_processes = {};
  // Processes of `from` that have ended. The state of lost processes can still be read, but elements are taken from
  // them only if no other process has them. Nothing can be read from gone processes.
  std::vector<int64_t> lost = {}, gone = {};
};

// Returns the plan of a process, which may be in one layout, in both or in neither. Throws InternalError for a negative
// process, if to_processes does not assign a different process to each rank of `to`, and if a lost or gone process is
// not in `from` or becomes a rank of `to`.
RelayoutPlan plan_relayout(const RelayoutRequest& request, int64_t process);

// Returns a lower bound of the seconds that the plan's messages take on a cluster's links. It is the time in which the
// busiest process transfers its bytes, in either direction, plus one latency per round. The time is over its link
// within or between nodes (node = process / cluster.ranks_per_node), whichever takes longer. 0 if no process takes
// anything from another. Clocks that model links use it, and it gives the cost of a switch before one has been
// measured.
double relayout_seconds(const RelayoutRequest& request, const ClusterDescription& cluster);

}  // namespace copus
