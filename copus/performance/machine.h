// Describes a machine as a cluster file does, from measurements of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/cluster_description.h"

namespace copus {

// Measurements taken on the devices of a machine at once, each working for a rank of its own. The figures are those of
// one device.
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
  // Whether the reference was measured at the limit of the device's power, and the other products after it, when the
  // clock may have risen again: a product that seems faster than the reference then counts as fast as it.
  bool reference_is_sustained = false;
  std::vector<Matmul> matmuls;         // others, with different rows, columns or depth
  std::vector<Attention> attentions;   // in ascending order of sequence lengths
  int64_t ranks = 2;                   // number of ranks in the collectives
  std::vector<AllReduce> all_reduces;  // in ascending order of bytes, two at least
  CommunicatorCosts communicators;     // between GPUs that each have a rank
};

// The largest number of ranks that one machine is expected to run.
inline constexpr int64_t most_ranks_of_machine = 64;

// Describes one node whose ranks share its devices. The measured link stands for either link: ranks have no other here.
// Its latency is that of the smallest all-reduce by the ring's formula (link_cost.h), its bandwidth the best that a
// larger one reaches beyond the latency.
ClusterDescription describe_machine(const MachineMeasurements& measurements);

// Returns MachineMeasurements::name for a device that was measured in `precision`, "fp32" or "bf16". The name ends with
// the precision, so that cluster files keep it.
std::string measured_device_name(std::string_view device, std::string_view precision);

// Returns the precision with which the device's name ends, "fp32" or "bf16"; empty where it ends otherwise.
std::optional<std::string_view> measured_precision(const Device& device);

// Returns a warning where measured_precision() is known and not the job's.
std::optional<std::string> warning_of_precision(const Device& device, std::string_view precision);

}  // namespace copus
