// A cluster: its devices, which ranks share a node, how fast the links are, and what clock a run shows them on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace copus {

struct CurvePoint {
  double at = 0;
  double value = 0;
  bool operator==(const CurvePoint&) const = default;
};

// A measured curve: between its points (in ascending order of `at` > 0) linear in the logarithm of `at`, before the
// first and after the last one constant. Without points it is 1 everywhere.
class Curve {
 public:
  Curve() = default;
  // Throws InternalError when the points are not in strictly ascending order: the configuration refuses such curves.
  Curve(std::vector<CurvePoint> points);  // NOLINT(google-explicit-constructor): a list of points is a curve

  double at(double x) const;
  const std::vector<CurvePoint>& points() const { return points_; }
  bool operator==(const Curve&) const = default;

 private:
  std::vector<CurvePoint> points_;
};

// Of one rank, in one direction.
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;
  Curve efficiency = {};  // by the bytes of a collective or message: the share of bytes_per_second that it reaches
  bool operator==(const Link&) const = default;
};

// What a rank computes on. Speeds are of the precision that is trained in.
struct Device {
  std::string name;
  double memory_bytes = 0;             // that a job may fill; 0: not known, so that nothing is too large
  double memory_bytes_per_second = 0;  // read and written, together
  double peak_flops_per_second = 0;    // dense, of the data sheet; 0: not known, so that there is no MFU
  double matmul_flops_per_second = 0;  // of the best matrix product that was measured
  Curve matmul_by_rows = {};           // the share of that which a product [rows, depth] x [depth, columns] reaches
  Curve matmul_by_columns = {};        //   is the product of these three
  Curve matmul_by_depth = {};
  Curve attention_forward = {};  // by sequence length: share of matmul_flops_per_second, counting causal halves
  Curve attention_backward = {};
  double launch_seconds = 0;  // of the host, for one kernel: kernels shorter than this wait for it
  bool operator==(const Device&) const = default;
};

// Ranks 0 .. ranks_per_node - 1 are the first node, and so on.
struct ClusterDescription {
  int64_t num_ranks = 0;  // of the whole cluster; 0: not said
  int64_t ranks_per_node = 1;
  // Devices of a node that its ranks share, for example the cores of one machine; 0: each rank has its own.
  int64_t devices_per_node = 0;
  Link within_node = {};
  Link between_nodes = {};
  // Network adapters of a node that one group of ranks can use at once, if it has as many members there. The ring of a
  // group with k members on each node then has min(rails, k) times the bandwidth between nodes.
  int64_t rails = 1;
  Curve network_by_nodes = {};  // by the number of nodes that a group spans: the share of between_nodes that is left
  double flops_per_second = 0;  // of one rank, for compute time on the virtual clock; 0: its thread's measured time
  Device device = {};
  bool operator==(const ClusterDescription&) const = default;
};

// Whether the description says how fast a rank computes, so that steps can be predicted: by a rate for the virtual
// clock, or by what its device reaches.
bool is_speed_known(const ClusterDescription& cluster);

// How a run shows what communication would cost on that cluster.
enum class ClockKind {
  real,          // not at all
  wall,          // messages really arrive late
  virtual_time,  // nobody sleeps: each rank's clock advances as its device's and its links' would
};

// The names used in the configuration: "real", "wall", "virtual".
std::string_view to_string(ClockKind clock);

}  // namespace copus
