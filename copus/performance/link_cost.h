// The cost of communication on the links of a cluster: latency and bandwidth, by the number of bytes and by where a
// group's ranks lie.
#pragma once

#include <cstdint>
#include <span>

#include "copus/description/cluster_description.h"

namespace copus {

// A series of `count` world ranks, each `stride` behind the one before it: the form of every group of a mesh.
struct RankSeries {
  int64_t first = 0;
  int64_t stride = 1;
  int64_t count = 1;
};

// Returns the link that a collective of a group uses: within_node where its world ranks lie on one node. Otherwise,
// with k members on each node that it spans (on average, rounded up), min(rails, k) times between_nodes, multiplied by
// network_by_nodes; no more than within_node where several adapters are counted. Its tree_seconds are those of the
// whole tree over these nodes: 2 log2(nodes) levels, rounded up.
Link link_of(const ClusterDescription& cluster, std::span<const int64_t> ranks);
Link link_of(const ClusterDescription& cluster, const RankSeries& ranks);

// Return the seconds of collectives over n ranks, by the ring algorithm (Patarasuk & Yuan 2009): a reduce-scatter or an
// all-gather of `bytes` in total is n - 1 rounds of bytes / n; an all-reduce is one after the other, or takes a tree
// (NCCL 2.4, "double binary trees"), whichever is faster: as many bytes per rank, but for each round the latency of a
// level, of which there are few. A broadcast is pipelined: the bytes once, and n - 1 latencies. A barrier is log2 n
// latencies, rounded up (the dissemination barrier, Hensgen et al. 1988). The result is 0 for n = 1.
double all_reduce_seconds(const Link& link, int64_t n, int64_t bytes);
double reduce_scatter_seconds(const Link& link, int64_t n, int64_t bytes);
double all_gather_seconds(const Link& link, int64_t n, int64_t bytes);
double broadcast_seconds(const Link& link, int64_t n, int64_t bytes);
double barrier_seconds(const Link& link, int64_t n);
// Returns the seconds of an all-reduce of few bytes by recursive doubling (Thakur, Rabenseifner & Gropp 2005), where
// its result allows that (comm/messages/reduction_rounds.h): log2 n messages in a row, rounded down, and two more where
// n is no power of two.
double small_all_reduce_seconds(const Link& link, int64_t n, int64_t bytes);
// Returns the seconds of one message.
double send_seconds(const Link& link, int64_t bytes);

}  // namespace copus
