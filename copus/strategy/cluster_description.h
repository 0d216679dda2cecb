// A cluster as the link model sees it: which ranks share a node, and how fast the links are.
#pragma once

#include <cstdint>

namespace copus {

// Of one rank, in one direction.
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;
  bool operator==(const Link&) const = default;
};

// Ranks 0 .. ranks_per_node - 1 are the first node, and so on.
struct ClusterDescription {
  int64_t ranks_per_node = 1;
  Link within_node;
  Link between_nodes;
  double flops_per_second = 0;  // of one rank, for compute time on the virtual clock; 0: its thread's measured time
  bool operator==(const ClusterDescription&) const = default;
};

}  // namespace copus
