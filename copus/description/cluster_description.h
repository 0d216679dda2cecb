// A cluster: its devices, which ranks share a node, how fast the links are, and what clock a run shows them on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/base/named_values.h"

namespace copus {

struct CurvePoint {
  double at = 0;
  double value = 0;
  bool operator==(const CurvePoint&) const = default;
};

// A measured curve. Between its points, which ascend by `at` > 0, it is linear in the logarithm of `at`; before the
// first and after the last one it is constant. Without points it is 1 everywhere.
class Curve {
 public:
  Curve() = default;
  // Throws InternalError where the points do not ascend strictly: configurations with such curves are refused earlier.
  Curve(std::vector<CurvePoint> points);  // NOLINT(google-explicit-constructor): a list of points is a curve

  double at(double x) const;
  const std::vector<CurvePoint>& points() const { return points_; }
  bool operator==(const Curve&) const = default;

 private:
  std::vector<CurvePoint> points_;
};

// What a rank can send in one direction.
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;
  Curve efficiency = {};  // the share of bytes_per_second that is reached, by the bytes of a collective or message
  // What an all-reduce by a tree of nodes takes for each level, up or down, beside its bytes; 0: there are only rings.
  double tree_seconds = 0;
  bool operator==(const Link&) const = default;
};

// What a rank computes on. Speeds are those in the precision that is trained in.
struct Device {
  std::string name;
  double memory_bytes = 0;             // what a job may fill; 0: not known, so that nothing is too large
  double memory_bytes_per_second = 0;  // bytes read and bytes written, added up
  double peak_flops_per_second = 0;    // the data sheet's, without sparsity; 0: not known, so that there is no MFU
  double matmul_flops_per_second = 0;  // what the best matrix product that was measured has reached
  // A product [rows, depth] x [depth, columns] reaches the product of these three shares of it.
  Curve matmul_by_rows = {};
  Curve matmul_by_columns = {};
  Curve matmul_by_depth = {};
  // The shares that attention reaches, by sequence length, counting causal halves.
  Curve attention_forward = {};
  Curve attention_backward = {};
  double launch_seconds = 0;  // what the host takes to launch a kernel: shorter kernels wait for it
  bool operator==(const Device&) const = default;
};

// Measured costs of the communicators that NCCL (or RCCL) opens between devices, one for each group of ranks and kind
// of operation. 0: not measured.
struct CommunicatorCosts {
  // Device memory of one communicator on the rank where it takes most: for the collectives of a group, for exchanges
  // between any of its members, for messages between two neighbours.
  double collective_bytes = 0;
  double exchange_bytes = 0;
  double message_bytes = 0;
  double context_bytes = 0;  // of a rank without communicators: the device's context, kernels and libraries
  double split_seconds = 0;  // to open and connect one communicator; groups without a common rank open at once
  bool are_measured() const { return collective_bytes > 0 || exchange_bytes > 0 || message_bytes > 0; }
  bool operator==(const CommunicatorCosts&) const = default;
};

// Ranks 0 .. ranks_per_node - 1 are the first node, and so on.
struct ClusterDescription {
  int64_t num_ranks = 0;  // in the whole cluster; 0: not said
  int64_t ranks_per_node = 1;
  // Devices of a node that its ranks share, for example the cores of one machine; 0: each rank has its own.
  int64_t devices_per_node = 0;
  Link within_node = {};
  Link between_nodes = {};
  // Network adapters of a node that one group of ranks can use at once. The ring of a group with k members on each node
  // has min(rails, k) times the bandwidth between nodes.
  int64_t rails = 1;
  Curve network_by_nodes = {};  // the share of between_nodes that is left, by the number of nodes that a group spans
  int64_t measured_nodes = 0;   // on how many nodes the description was compared with measurements; 0: not said
  double flops_per_second = 0;  // a rank's speed on the virtual clock; 0: its thread's measured time counts
  Device device = {};
  CommunicatorCosts communicators = {};
  bool operator==(const ClusterDescription&) const = default;
};

// Whether the description says how fast a rank computes, so that steps can be predicted: by a rate for the virtual
// clock, or by what its device reaches.
bool is_speed_known(const ClusterDescription& cluster);

// How a run shows what communication would cost on the cluster that it describes.
enum class ClockKind {
  real,          // not at all
  wall,          // messages really arrive late
  virtual_time,  // nobody sleeps: a rank's clock advances by what its device and links would have taken
  modelled,      // one process trains, and time runs as predicted for the job on the cluster that it stands for
};

template <>
inline constexpr auto named_values<ClockKind> =
    std::to_array<NamedValue<ClockKind>>({{ClockKind::real, "real"},
                                          {ClockKind::wall, "wall"},
                                          {ClockKind::virtual_time, "virtual"},
                                          {ClockKind::modelled, "modelled"}});

}  // namespace copus
