// The cost of communication on a cluster's links: latency and bandwidth, by number of bytes and placement of ranks.
#pragma once

#include <cstdint>
#include <span>

#include "copus/description/cluster_description.h"

namespace copus {

// The ranks `first`, `first` + `stride` and so on, `count` of them. Every group of a mesh is such a series.
struct RankSeries {
  int64_t first = 0;
  int64_t stride = 1;
  int64_t count = 1;
};

// Returns the link that a group's collective uses. This is within_node if all ranks are on one node. Otherwise it is
// between_nodes, with the bandwidth multiplied by network_by_nodes and by min(rails, k), where k is the mean number of
// members per spanned node, rounded up. With several adapters (rails) the bandwidth is at most the bandwidth of
// within_node. The result's tree_seconds is for a whole tree over these nodes, 2 ceil(log2(nodes)) levels.
Link link_of(const ClusterDescription& cluster, std::span<const int64_t> ranks);
Link link_of(const ClusterDescription& cluster, const RankSeries& ranks);

// Return the seconds of a collective over n ranks; 0 for n = 1. `bytes` is the size of the whole vector. Collectives
// use rings (Patarasuk & Yuan 2009): a reduce-scatter or an all-gather has n - 1 rounds of bytes / n. An all-reduce is
// a reduce-scatter and an all-gather or, if that is faster, a tree (NCCL 2.4, "double binary trees"). A tree moves as
// many bytes per rank, but has the latencies of only a few levels. A broadcast is pipelined: n - 1 latencies, and the
// bytes once. A barrier takes ceil(log2 n) latencies (dissemination barrier, Hensgen et al. 1988).
double all_reduce_seconds(const Link& link, int64_t n, int64_t bytes);
double reduce_scatter_seconds(const Link& link, int64_t n, int64_t bytes);
double all_gather_seconds(const Link& link, int64_t n, int64_t bytes);
double broadcast_seconds(const Link& link, int64_t n, int64_t bytes);
double barrier_seconds(const Link& link, int64_t n);
// Returns the seconds of a small all-reduce by recursive doubling (Thakur, Rabenseifner & Gropp 2005). It has
// floor(log2 n) messages in a row, and two more if n is not a power of two. Requires a sum that does not depend on the
// order (comm/messages/reduction_rounds.h).
double small_all_reduce_seconds(const Link& link, int64_t n, int64_t bytes);
// Returns the seconds of one message.
double send_seconds(const Link& link, int64_t bytes);

}  // namespace copus
