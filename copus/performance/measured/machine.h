// Converts measurements of a machine into a cluster description.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/cluster_description.h"

namespace copus {

// Measurements of one device, while all devices of the machine work at once, each for its own rank.
struct MachineMeasurements {
  struct Matmul {
    int64_t rows = 0, columns = 0, depth = 0;  // [rows, depth] x [depth, columns]
    double seconds = 0;
  };
  struct Attention {
    int64_t sequence = 0;
    double forward_flops_per_second = 0, backward_flops_per_second = 0;  // counting only the causal half
  };
  struct AllReduce {
    int64_t bytes = 0;
    double seconds = 0;
  };

  std::string name;
  int64_t devices = 1;      // of the machine
  bool are_shared = true;   // whether ranks share the devices; otherwise each rank has its own
  double memory_bytes = 0;  // of the whole machine
  double memory_bytes_per_second = 0;
  double launch_seconds = 0;
  Matmul reference;
  // Whether the reference product was measured at the device's power limit. The other products may then have run at a
  // higher clock, so their rates are capped at the reference's.
  bool reference_is_sustained = false;
  std::vector<Matmul> matmuls;         // products with other rows, columns or depth
  std::vector<Attention> attentions;   // in ascending order of sequence lengths
  int64_t ranks = 2;                   // in the collectives
  std::vector<AllReduce> all_reduces;  // in ascending order of bytes, at least two
  CommunicatorCosts communicators;     // between GPUs, each with its own rank
};

// The largest number of ranks that one machine is expected to run.
inline constexpr int64_t most_ranks_of_machine = 64;

// Describes one node, whose ranks share its devices or have one each. The measured link stands for links within and
// between nodes. Its latency follows from the smallest all-reduce by the ring formula (link_cost.h). Its bandwidth is
// the best of the larger all-reduces, after subtracting latency.
ClusterDescription describe_machine(const MachineMeasurements& measurements);

// Returns a MachineMeasurements::name for a device measured in `precision` ("fp32" or "bf16"). The name ends with the
// precision, so that cluster files preserve it.
std::string measured_device_name(std::string_view device, std::string_view precision);

// Returns the precision at the end of the device's name, "fp32" or "bf16"; empty for other names.
std::optional<std::string_view> measured_precision(const Device& device);

// Returns a warning if measured_precision() is known and is not the job's precision.
std::optional<std::string> warning_of_precision(const Device& device, std::string_view precision);

}  // namespace copus
