// Describes a machine in the form of a cluster file, from measurements of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/cluster_description.h"

namespace copus {

// Measurements on all devices of a machine at once, each working for its own rank. The numbers are those of one device.
struct MachineMeasurements {
  struct Matmul {
    int64_t rows = 0, columns = 0, depth = 0;  // [rows, depth] x [depth, columns]
    double seconds = 0;
  };
  struct Attention {
    int64_t sequence = 0;
    double forward_flops_per_second = 0, backward_flops_per_second = 0;  // counted over causal halves
  };
  struct AllReduce {
    int64_t bytes = 0;
    double seconds = 0;
  };

  std::string name;
  int64_t devices = 1;      // number of devices of the machine
  double memory_bytes = 0;  // memory of the whole machine
  double memory_bytes_per_second = 0;
  double launch_seconds = 0;
  Matmul reference;
  // Whether the reference was measured at the device's power limit. The other products were measured later, perhaps at
  // a higher clock. If one of them seems faster than the reference, it counts as equally fast.
  bool reference_is_sustained = false;
  std::vector<Matmul> matmuls;         // others, with different rows, columns or depth
  std::vector<Attention> attentions;   // in ascending order of sequence lengths
  int64_t ranks = 2;                   // number of ranks in the collectives
  std::vector<AllReduce> all_reduces;  // in ascending order of bytes, at least two
  CommunicatorCosts communicators;     // between GPUs that each have their own rank
};

// The largest number of ranks that one machine is expected to run.
inline constexpr int64_t most_ranks_of_machine = 64;

// Describes one node whose ranks share its devices. The measured link serves as both links, since ranks have no other
// here. Its latency follows from the smallest all-reduce by the ring's formula (link_cost.h). Its bandwidth is the best
// that a larger one reaches, after subtracting the latency.
ClusterDescription describe_machine(const MachineMeasurements& measurements);

// Returns MachineMeasurements::name for a device that was measured in `precision`, "fp32" or "bf16". The name ends with
// the precision, so that cluster files keep it.
std::string measured_device_name(std::string_view device, std::string_view precision);

// Returns the precision at the end of the device's name, "fp32" or "bf16"; empty if the name has another ending.
std::optional<std::string_view> measured_precision(const Device& device);

// Returns a warning if measured_precision() is known and differs from the job's.
std::optional<std::string> warning_of_precision(const Device& device, std::string_view precision);

}  // namespace copus
