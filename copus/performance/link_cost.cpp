#include "copus/performance/link_cost.h"

#include <algorithm>
#include <bit>

#include "copus/base/error.h"

namespace copus {

namespace {

// `rounds` of the ring, in each of which every rank passes on its nth part of the bytes.
double ring_seconds(const Link& link, int64_t n, int64_t bytes, int64_t rounds) {
  if (n == 1) return 0;
  const double part = static_cast<double>(bytes) / static_cast<double>(n);
  return static_cast<double>(rounds) * (link.latency_seconds + part / link.bytes_per_second);
}

}  // namespace

const Link& link_of(const ClusterDescription& cluster, std::span<const int64_t> ranks) {
  COPUS_CHECK(!ranks.empty() && cluster.ranks_per_node >= 1);
  const int64_t node = ranks.front() / cluster.ranks_per_node;
  const bool on_one_node =
      std::all_of(ranks.begin(), ranks.end(), [&](int64_t rank) { return rank / cluster.ranks_per_node == node; });
  return on_one_node ? cluster.within_node : cluster.between_nodes;
}

double all_reduce_seconds(const Link& link, int64_t n, int64_t bytes) {
  return ring_seconds(link, n, bytes, 2 * (n - 1));
}

double reduce_scatter_seconds(const Link& link, int64_t n, int64_t bytes) {
  return ring_seconds(link, n, bytes, n - 1);
}

double all_gather_seconds(const Link& link, int64_t n, int64_t bytes) { return ring_seconds(link, n, bytes, n - 1); }

double broadcast_seconds(const Link& link, int64_t n, int64_t bytes) {
  if (n == 1) return 0;
  return static_cast<double>(n - 1) * link.latency_seconds + static_cast<double>(bytes) / link.bytes_per_second;
}

double barrier_seconds(const Link& link, int64_t n) {
  const auto rounds = std::bit_width(static_cast<uint64_t>(n - 1));
  return static_cast<double>(rounds) * link.latency_seconds;
}

double send_seconds(const Link& link, int64_t bytes) {
  return link.latency_seconds + static_cast<double>(bytes) / link.bytes_per_second;
}

}  // namespace copus
