#include "copus/performance/link_cost.h"

#include <algorithm>
#include <bit>
#include <set>

#include "copus/base/error.h"

namespace copus {

namespace {

double bandwidth(const Link& link, int64_t bytes) {
  return link.bytes_per_second * link.efficiency.at(static_cast<double>(bytes));
}

// Returns the seconds of `rounds` ring rounds, in each of which every rank sends 1/n of the bytes to the next rank.
double ring_seconds(const Link& link, int64_t n, int64_t bytes, int64_t rounds) {
  if (n == 1) return 0;
  const double part = static_cast<double>(bytes) / static_cast<double>(n);
  return static_cast<double>(rounds) * (link.latency_seconds + part / bandwidth(link, bytes));
}

Link link_across(const ClusterDescription& cluster, int64_t count, int64_t nodes) {
  if (nodes == 1) return cluster.within_node;
  const int64_t rails = std::min(cluster.rails, (count + nodes - 1) / nodes);
  Link link = cluster.between_nodes;
  link.bytes_per_second *= static_cast<double>(rails) * cluster.network_by_nodes.at(static_cast<double>(nodes));
  if (rails > 1) link.bytes_per_second = std::min(link.bytes_per_second, cluster.within_node.bytes_per_second);
  link.tree_seconds *= static_cast<double>(2 * std::bit_width(static_cast<uint64_t>(nodes - 1)));
  return link;
}

}  // namespace

Link link_of(const ClusterDescription& cluster, std::span<const int64_t> ranks) {
  COPUS_CHECK(!ranks.empty() && cluster.ranks_per_node >= 1);
  std::set<int64_t> nodes;
  for (const int64_t rank : ranks) nodes.insert(rank / cluster.ranks_per_node);
  return link_across(cluster, std::ssize(ranks), std::ssize(nodes));
}

Link link_of(const ClusterDescription& cluster, const RankSeries& ranks) {
  COPUS_CHECK(ranks.count >= 1 && ranks.stride >= 1 && cluster.ranks_per_node >= 1);
  const int64_t last = ranks.first + (ranks.count - 1) * ranks.stride;
  // If the stride is less than a node's size, the series has members on every node that it spans.
  const int64_t nodes = ranks.stride >= cluster.ranks_per_node
                            ? ranks.count
                            : last / cluster.ranks_per_node - ranks.first / cluster.ranks_per_node + 1;
  return link_across(cluster, ranks.count, nodes);
}

double all_reduce_seconds(const Link& link, int64_t n, int64_t bytes) {
  const double ring = ring_seconds(link, n, bytes, 2 * (n - 1));
  if (link.tree_seconds == 0) return ring;
  return std::min(ring, link.tree_seconds + ring_seconds({.latency_seconds = 0,
                                                          .bytes_per_second = link.bytes_per_second,
                                                          .efficiency = link.efficiency},
                                                         n, bytes, 2 * (n - 1)));
}

double reduce_scatter_seconds(const Link& link, int64_t n, int64_t bytes) {
  return ring_seconds(link, n, bytes, n - 1);
}

double all_gather_seconds(const Link& link, int64_t n, int64_t bytes) { return ring_seconds(link, n, bytes, n - 1); }

double broadcast_seconds(const Link& link, int64_t n, int64_t bytes) {
  if (n == 1) return 0;
  return static_cast<double>(n - 1) * link.latency_seconds + static_cast<double>(bytes) / bandwidth(link, bytes);
}

double barrier_seconds(const Link& link, int64_t n) {
  const auto rounds = std::bit_width(static_cast<uint64_t>(n - 1));
  return static_cast<double>(rounds) * link.latency_seconds;
}

double small_all_reduce_seconds(const Link& link, int64_t n, int64_t bytes) {
  if (n == 1) return 0;  // a single rank's links may have no bandwidth
  const auto members = static_cast<uint64_t>(n);
  const auto rounds = std::bit_width(members) - 1 + (std::has_single_bit(members) ? 0 : 2);
  return static_cast<double>(rounds) * send_seconds(link, bytes);
}

double send_seconds(const Link& link, int64_t bytes) {
  return link.latency_seconds + static_cast<double>(bytes) / bandwidth(link, bytes);
}

}  // namespace copus
