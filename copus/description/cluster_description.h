// A cluster: its devices, which ranks share a node, how fast the links are, and the clock that runs use for them.
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
// first and after the last point it is constant. Without points it is 1 everywhere.
class Curve {
 public:
  Curve() = default;
  // Throws InternalError if the points do not ascend strictly; configurations with such curves are refused earlier.
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
  Curve efficiency = {};  // the fraction of bytes_per_second that is reached, by the bytes of a collective or message
  // Time of an all-reduce with a tree of nodes, for each level, up or down, in addition to the time of its bytes. 0:
  // only rings are used.
  double tree_seconds = 0;
  bool operator==(const Link&) const = default;
};

// The device of a rank. Speeds are for the precision of training.
struct Device {
  std::string name;
  double memory_bytes = 0;             // memory available to a job; 0: unknown, so nothing is too large
  double memory_bytes_per_second = 0;  // bytes read plus bytes written
  double peak_flops_per_second = 0;    // from the data sheet, without sparsity; 0: unknown, so there is no MFU
  double matmul_flops_per_second = 0;  // of the fastest measured matrix product
  // A product [rows, depth] x [depth, columns] reaches this speed times these three fractions.
  Curve matmul_by_rows = {};
  Curve matmul_by_columns = {};
  Curve matmul_by_depth = {};
  // Fractions that attention reaches, by sequence length, counting causal halves.
  Curve attention_forward = {};
  Curve attention_backward = {};
  double launch_seconds = 0;  // the host's time to launch a kernel: shorter kernels wait for it
  bool operator==(const Device&) const = default;
};

// Measured costs of the communicators that NCCL (or RCCL) opens between devices, one for each group of ranks and kind
// of operation. 0: not measured.
struct CommunicatorCosts {
  // Device memory of one communicator on the rank where it takes most. There is one value for a group's collectives,
  // one for exchanges between any of its members, and one for messages between two neighbours.
  double collective_bytes = 0;
  double exchange_bytes = 0;
  double message_bytes = 0;
  double context_bytes = 0;  // of a rank without communicators: the device's context, kernels and libraries
  double split_seconds = 0;  // to open and connect one communicator; groups without a common rank open at the same time
  bool are_measured() const { return collective_bytes > 0 || exchange_bytes > 0 || message_bytes > 0; }
  bool operator==(const CommunicatorCosts&) const = default;
};

// Ranks 0 .. ranks_per_node - 1 are on the first node, and so on.
struct ClusterDescription {
  int64_t num_ranks = 0;  // in the whole cluster; 0: unknown
  int64_t ranks_per_node = 1;
  // Devices of a node that its ranks share, for example the cores of one machine; 0: each rank has its own.
  int64_t devices_per_node = 0;
  Link within_node = {};
  Link between_nodes = {};
  // Network adapters of a node that one group of ranks can use at the same time. The ring of a group with k members on
  // each node has min(rails, k) times the bandwidth between nodes.
  int64_t rails = 1;
  Curve network_by_nodes = {};  // the remaining fraction of between_nodes, by the number of nodes that a group spans
  int64_t measured_nodes = 0;   // number of nodes on which the description was compared with measurements; 0: unknown
  double flops_per_second = 0;  // a rank's speed on the virtual clock; 0: its thread's measured time counts
  Device device = {};
  CommunicatorCosts communicators = {};
  bool operator==(const ClusterDescription&) const = default;
};

// Returns whether the description gives the computing speed of a rank, so that steps can be predicted. The speed is a
// rate for the virtual clock, or the speed of the rank's device.
bool is_speed_known(const ClusterDescription& cluster);

// How a run simulates the cost of communication on the described cluster.
enum class ClockKind {
  real,          // not at all
  wall,          // messages arrive late in real time
  virtual_time,  // nobody sleeps: a rank's clock advances by the time that its device and links would have taken
  modelled,      // one process trains, and time is as predicted for the job on the cluster that it represents
};

template <>
inline constexpr auto named_values<ClockKind> =
    std::to_array<NamedValue<ClockKind>>({{ClockKind::real, "real"},
                                          {ClockKind::wall, "wall"},
                                          {ClockKind::virtual_time, "virtual"},
                                          {ClockKind::modelled, "modelled"}});

}  // namespace copus
