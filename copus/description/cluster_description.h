// A cluster: its devices, nodes and links, and the clock that runs on it.
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

// A measured curve: linear in log(at) between its points, constant before the first and after the last. The points
// ascend by `at` > 0. A curve without points is 1 everywhere.
class Curve {
 public:
  Curve() = default;
  // Throws InternalError if the points do not ascend strictly. The parser of cluster files refuses such curves earlier.
  Curve(std::vector<CurvePoint> points);  // NOLINT(google-explicit-constructor): a list of points is a curve

  double at(double x) const;
  const std::vector<CurvePoint>& points() const { return points_; }
  bool operator==(const Curve&) const = default;

 private:
  std::vector<CurvePoint> points_;
};

// The link on which a rank sends, in one direction.
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;
  Curve efficiency = {};  // fraction of bytes_per_second reached, by the bytes of a collective or message
  // Seconds that an all-reduce over a tree of nodes takes per tree level and direction (up or down), in addition to the
  // time of its bytes. 0: all-reduces use rings only.
  double tree_seconds = 0;
  bool operator==(const Link&) const = default;
};

// The device of a rank. Speeds are for the training precision.
struct Device {
  std::string name;
  double memory_bytes = 0;             // available to a job; 0: unknown, so that everything fits
  double memory_bytes_per_second = 0;  // bytes read plus bytes written
  double peak_flops_per_second = 0;    // from the data sheet, without sparsity; 0: unknown, so that no MFU is reported
  double matmul_flops_per_second = 0;  // of the fastest measured matrix product
  // A product [rows, depth] x [depth, columns] reaches matmul_flops_per_second times these three fractions.
  Curve matmul_by_rows = {};
  Curve matmul_by_columns = {};
  Curve matmul_by_depth = {};
  // Fractions of matmul_flops_per_second that attention reaches, by sequence length, if only the causal half counts.
  Curve attention_forward = {};
  Curve attention_backward = {};
  double launch_seconds = 0;  // host time per kernel launch; a shorter kernel takes this long too
  bool operator==(const Device&) const = default;
};

// Measured costs of an NCCL (or RCCL) communicator. There is one for each group of ranks and kind of operation. 0: not
// measured.
struct CommunicatorCosts {
  // Device memory of one communicator, on the rank where it takes most. There are three kinds: for collectives of a
  // group, for exchanges between any members of a group, and for messages between two neighbours.
  double collective_bytes = 0;
  double exchange_bytes = 0;
  double message_bytes = 0;
  double context_bytes = 0;  // of a rank without communicators: device context, kernels and libraries
  double split_seconds = 0;  // to open and connect a communicator; disjoint groups open theirs at the same time
  bool are_measured() const { return collective_bytes > 0 || exchange_bytes > 0 || message_bytes > 0; }
  bool operator==(const CommunicatorCosts&) const = default;
};

// A cluster. Ranks 0 .. ranks_per_node - 1 are on the first node, the next ranks_per_node ranks on the second, and so
// on.
struct ClusterDescription {
  int64_t num_ranks = 0;  // in the whole cluster; 0: unknown
  int64_t ranks_per_node = 1;
  // Devices of a node if its ranks share them, for example the cores of a machine; 0: each rank has its own device.
  int64_t devices_per_node = 0;
  Link within_node = {};
  Link between_nodes = {};
  // Network adapters per node that one group of ranks can use at the same time. With k members per node the group's
  // ring has min(rails, k) times the bandwidth between nodes.
  int64_t rails = 1;
  Curve network_by_nodes = {};  // fraction of between_nodes that remains, by the number of nodes in a group
  int64_t measured_nodes = 0;   // on how many nodes measurements confirmed the description; 0: unknown
  double flops_per_second = 0;  // of a rank, on the virtual clock; 0: the thread's measured time counts
  Device device = {};
  CommunicatorCosts communicators = {};
  bool operator==(const ClusterDescription&) const = default;
};

// Returns whether step times can be predicted: the description has a rate for the virtual clock, or the speed of the
// ranks' device.
bool is_speed_known(const ClusterDescription& cluster);

// Returns the bytes that each of `ranks` ranks may use: the memory of its own device, or an equal part of the devices'
// memory if the ranks of a node share them. 0: unknown.
double memory_of_rank(const ClusterDescription& cluster, int64_t ranks);

// How a run accounts for communication on the described cluster.
enum class ClockKind {
  real,          // nothing is imitated
  wall,          // messages are delayed in real time
  virtual_time,  // no delays: a rank's clock advances by the time that the described device and links would take
  modelled,      // one process trains; its clock advances by the predicted step time of a job on the cluster
};

template <>
inline constexpr auto named_values<ClockKind> =
    std::to_array<NamedValue<ClockKind>>({{ClockKind::real, "real"},
                                          {ClockKind::wall, "wall"},
                                          {ClockKind::virtual_time, "virtual"},
                                          {ClockKind::modelled, "modelled"}});

}  // namespace copus
