// What communication costs on the links of a cluster: latency and bandwidth, by where a group's ranks lie.
#pragma once

#include <cstdint>
#include <span>

#include "copus/strategy/cluster_description.h"

namespace copus {

// The slowest link that a group needs: between nodes as soon as two of its world ranks lie on different nodes.
const Link& link_of(const ClusterDescription& cluster, std::span<const int64_t> ranks);

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
