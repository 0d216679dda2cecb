// What communication costs on the links of a cluster: latency and bandwidth, by how many bytes are sent and by where a
// group's ranks lie.
#pragma once

#include <cstdint>
#include <span>

#include "copus/description/cluster_description.h"

namespace copus {

// `count` world ranks, each `stride` behind the one before it: the form of all groups of a mesh.
struct RankSeries {
  int64_t first = 0;
  int64_t stride = 1;
  int64_t count = 1;
};

// The link that a collective of a group has: within_node where its world ranks lie on one node. Else, with k members on
// each node that it spans (on average, rounded up), min(rails, k) times between_nodes and what network_by_nodes leaves
// of it; no more than within_node where that is several adapters' together.
Link link_of(const ClusterDescription& cluster, std::span<const int64_t> ranks);
Link link_of(const ClusterDescription& cluster, const RankSeries& ranks);

// Seconds of collectives over n ranks, by the ring algorithm (Patarasuk & Yuan 2009): a reduce-scatter or an all-gather
// of `bytes` in total is n - 1 rounds of bytes / n; an all-reduce is one after the other. A broadcast is pipelined: the
// bytes once, and n - 1 latencies. A barrier is log2 n latencies, rounded up (the dissemination barrier, Hensgen et al.
// 1988). All are 0 for n = 1.
double all_reduce_seconds(const Link& link, int64_t n, int64_t bytes);
double reduce_scatter_seconds(const Link& link, int64_t n, int64_t bytes);
double all_gather_seconds(const Link& link, int64_t n, int64_t bytes);
double broadcast_seconds(const Link& link, int64_t n, int64_t bytes);
double barrier_seconds(const Link& link, int64_t n);
// One message.
double send_seconds(const Link& link, int64_t bytes);

}  // namespace copus
