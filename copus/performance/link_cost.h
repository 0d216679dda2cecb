// The cost of communication on a cluster's links: latency and bandwidth, by the number of bytes and by the placement of
// a group's ranks.
#pragma once

#include <cstdint>
#include <span>

#include "copus/description/cluster_description.h"

namespace copus {

// A series of `count` world ranks, each `stride` after the previous one. Every group of a mesh has this form.
struct RankSeries {
  int64_t first = 0;
  int64_t stride = 1;
  int64_t count = 1;
};

// Returns the link that a collective of a group uses. If all ranks of the group are on one node, it is within_node.
// Otherwise let k be the number of members on each node that the group spans (on average, rounded up). The link then
// has min(rails, k) times the bandwidth of between_nodes, multiplied by network_by_nodes, but no more than within_node
// if several adapters are counted. Its tree_seconds are for the whole tree over these nodes: 2 log2(nodes) levels,
// rounded up.
Link link_of(const ClusterDescription& cluster, std::span<const int64_t> ranks);
Link link_of(const ClusterDescription& cluster, const RankSeries& ranks);

// These functions return the seconds of a collective over n ranks; 0 for n = 1. `bytes` is the size of the whole
// vector. They assume the ring algorithm (Patarasuk & Yuan 2009), in which a reduce-scatter or an all-gather has n - 1
// rounds of bytes / n each. An all-reduce is a reduce-scatter and then an all-gather or, if that is faster, a tree
// (NCCL 2.4, "double binary trees"). The tree moves as many bytes per rank, but has only a few levels' latencies. A
// broadcast is pipelined: it takes n - 1 latencies and the time in which a link carries the bytes once. A barrier takes
// log2 n latencies, rounded up (the dissemination barrier, Hensgen et al. 1988).
double all_reduce_seconds(const Link& link, int64_t n, int64_t bytes);
double reduce_scatter_seconds(const Link& link, int64_t n, int64_t bytes);
double all_gather_seconds(const Link& link, int64_t n, int64_t bytes);
double broadcast_seconds(const Link& link, int64_t n, int64_t bytes);
double barrier_seconds(const Link& link, int64_t n);
// Returns the seconds of a small all-reduce by recursive doubling (Thakur, Rabenseifner & Gropp 2005), for results that
// do not depend on the order (comm/messages/reduction_rounds.h): log2 n messages in a row, rounded down, and two more
// if n is not a power of two.
double small_all_reduce_seconds(const Link& link, int64_t n, int64_t bytes);
// Returns the seconds of one message.
double send_seconds(const Link& link, int64_t bytes);

}  // namespace copus
