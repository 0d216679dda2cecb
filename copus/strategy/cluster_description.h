// A cluster as the link model sees it: which ranks share a node, how fast the links are, and what clock shows it.
#pragma once

#include <cstdint>
#include <string_view>

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

// How a run shows what communication would cost on that cluster.
enum class ClockKind {
  real,          // not at all
  wall,          // messages really arrive late
  virtual_time,  // nobody sleeps: each rank's clock advances as its device's and its links' would
};

// The names used in the configuration: "real", "wall", "virtual".
std::string_view to_string(ClockKind clock);

}  // namespace copus
