// The plan of a re-layout: which elements of the training state each rank takes from whom, and in which order, so that
// the state of every rank of the new layout is complete and memory stays small. Every rank computes the same plan
// alone, from the two strategies.
//
// Plans use one coordinate space: parameter name and element index, for each kind of state. A layout maps a rank to
// boxes (and with ZeRO to stretches of buckets); the plan is the intersection of two layouts. Holders of the same
// element are equivalent: replicas, and a tied copy of the head and its embedding.
//
// Buckets that have only a gradient appear nowhere in a plan. Runs deliver every element of every parameter once and
// nothing else: the padding of a new buffer (find_padding) has to be zeroed by whoever allocates it.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/placement/bucket_offsets.h"

namespace copus {

// Kinds of content of a bucket that outlive a step. Gradients are zero at a step boundary and are not moved.
enum class StateKind {
  // The bucket in the master dtype, with ZeRO-3 this rank's shard of it; only where the compute weights are the master
  // weights (fp32).
  weights,
  master,      // this rank's shard; only where they are not (bf16): compute weights are then derived after the move
  exp_avg,     // this rank's shard
  exp_avg_sq,  // this rank's shard
};

// A copy of `rows` stretches of `count` elements, `from_stride` and `to_stride` apart. Positions are in the buffer of
// the kind: of the whole bucket for weights that are not cut, of the shard for all else.
struct CopyRun {
  int64_t from = 0, to = 0, count = 0;
  int64_t rows = 1, from_stride = 0, to_stride = 0;
  bool operator==(const CopyRun&) const = default;
};

// The elements that one rank takes for one buffer of a new bucket from one buffer of an old bucket of `sender`.
struct Transfer {
  int64_t sender = 0;    // world rank; may be the receiver
  int64_t receiver = 0;  // world rank
  StateKind kind = StateKind::weights;
  int64_t from_bucket = 0;  // index in the sender's old layout
  int64_t to_bucket = 0;    // index in the receiver's new layout
  std::vector<CopyRun> runs;
  int64_t num_elements() const;
};

// One round on one rank: it allocates, takes, and releases when every rank has taken what it needs.
struct RelayoutRound {
  std::vector<int64_t> allocate;   // new buckets, whose state (every kind, not the gradient) begins to exist
  std::vector<Transfer> receives;  // in the order of to_bucket and kind
  std::vector<Transfer> sends;     // what other ranks take from this one, for transports that need a sender
  std::vector<int64_t> release;    // old buckets that nobody reads any more
};

struct RankPlan {
  // A bucket that is the same in both layouts and stays in place (old index, new index): neither copied nor allocated.
  struct Kept {
    int64_t from_bucket, to_bucket;
  };
  std::vector<Kept> kept;
  std::vector<RelayoutRound> rounds;  // equally many on every rank
};

struct RelayoutPlan {
  int64_t num_rounds = 0;
  RankPlan mine;               // plan of the rank that asked
  int64_t bytes_copied = 0;    // by every rank together; copies of a rank from itself count, kept buckets do not
  int64_t bytes_received = 0;  // the part of bytes_copied that comes from other ranks
  // State bytes (weights or master, moments; no gradients), padding included, of the rank that holds most: before,
  // after, and at the worst moment of the plan. peak_bound_bytes is what the order promises: max(before, after) + k of
  // the largest buckets. k is 1 but for rare shapes, or as many as are together an eighth of the state.
  int64_t old_bytes = 0, new_bytes = 0, peak_bytes = 0, peak_bound_bytes = 0;
  std::vector<int64_t> peak_bytes_by_rank;
  uint64_t hash = 0;  // equal on every rank
};

// The two strategies and what else a plan depends on. Their worlds must have one size (InternalError otherwise).
struct RelayoutRequest {
  ModelDescription model;
  int64_t sequence_length = 0;
  ParallelStrategy from, to;
  bool weights_are_master = true;  // whether compute weights are the master weights (fp32)
  int64_t ranks_per_node = 0;      // 0: one node for every rank; senders on the receiver's node are preferred
};

RelayoutPlan plan_relayout(const RelayoutRequest& request, int64_t rank);

// Returns a lower bound of the seconds that the plan's messages take on a cluster's links: the busiest rank's bytes, in
// either direction, over its link within or between nodes, whichever takes longer, and one latency a round; 0 where no
// rank takes anything from another. It serves clocks that show modelled links, and gives the cost of a switch before
// one was measured.
double relayout_seconds(const RelayoutRequest& request, const ClusterDescription& cluster);

}  // namespace copus
