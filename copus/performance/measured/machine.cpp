#include "copus/performance/measured/machine.h"

#include <algorithm>

#include "copus/base/error.h"

namespace copus {

namespace {

using Matmul = MachineMeasurements::Matmul;

double flops_per_second(const Matmul& product) {
  return 2 * static_cast<double>(product.rows) * static_cast<double>(product.columns) *
         static_cast<double>(product.depth) / product.seconds;
}

// Returns the rates of the matrix products that differ from the reference product only in `dimension`, relative to the
// reference's rate.
Curve share_by(int64_t Matmul::* dimension, const MachineMeasurements& measurements) {
  const Matmul& reference = measurements.reference;
  std::vector<CurvePoint> points = {{static_cast<double>(reference.*dimension), 1}};
  for (const Matmul& product : measurements.matmuls) {
    Matmul like_reference = product;
    like_reference.*dimension = reference.*dimension;
    if (like_reference.rows != reference.rows || like_reference.columns != reference.columns ||
        like_reference.depth != reference.depth) {
      continue;
    }
    const double share = flops_per_second(product) / flops_per_second(reference);
    points.push_back(
        {static_cast<double>(product.*dimension), measurements.reference_is_sustained ? std::min(share, 1.0) : share});
  }
  std::sort(points.begin(), points.end(), [](const CurvePoint& a, const CurvePoint& b) { return a.at < b.at; });
  return points;
}

double rounds_of(int64_t ranks) { return 2 * static_cast<double>(ranks - 1); }

Link describe_link(const MachineMeasurements& measurements) {
  const std::vector<MachineMeasurements::AllReduce>& all = measurements.all_reduces;
  COPUS_CHECK(all.size() >= 2 && measurements.ranks >= 2);
  const double rounds = rounds_of(measurements.ranks);
  Link link;
  link.latency_seconds = all.front().seconds / rounds;
  std::vector<CurvePoint> rates;
  for (size_t i = 1; i < all.size(); ++i) {
    const double beyond_latency = all[i].seconds - all.front().seconds;
    if (beyond_latency <= 0) continue;
    const auto bytes = static_cast<double>(all[i].bytes);
    const double rate = rounds * bytes / static_cast<double>(measurements.ranks) / beyond_latency;
    rates.push_back({bytes, rate});
    link.bytes_per_second = std::max(link.bytes_per_second, rate);
  }
  COPUS_CHECK(!rates.empty(), "no all-reduce took longer than the smallest one");
  for (CurvePoint& rate : rates) rate.value /= link.bytes_per_second;
  link.efficiency = rates;
  return link;
}

}  // namespace

ClusterDescription describe_machine(const MachineMeasurements& measurements) {
  ClusterDescription machine;
  machine.num_ranks = measurements.devices;
  machine.ranks_per_node = measurements.are_shared ? most_ranks_of_machine : measurements.devices;
  machine.devices_per_node = measurements.are_shared ? measurements.devices : 0;
  machine.within_node = machine.between_nodes = describe_link(measurements);
  Device& device = machine.device;
  device.name = measurements.name;
  device.memory_bytes = measurements.memory_bytes / static_cast<double>(measurements.devices);
  device.memory_bytes_per_second = measurements.memory_bytes_per_second;
  device.matmul_flops_per_second = flops_per_second(measurements.reference);
  device.matmul_by_rows = share_by(&Matmul::rows, measurements);
  device.matmul_by_columns = share_by(&Matmul::columns, measurements);
  device.matmul_by_depth = share_by(&Matmul::depth, measurements);
  std::vector<CurvePoint> forward, backward;
  for (const MachineMeasurements::Attention& attention : measurements.attentions) {
    const auto sequence = static_cast<double>(attention.sequence);
    forward.push_back({sequence, attention.forward_flops_per_second / device.matmul_flops_per_second});
    backward.push_back({sequence, attention.backward_flops_per_second / device.matmul_flops_per_second});
  }
  device.attention_forward = forward;
  device.attention_backward = backward;
  device.launch_seconds = measurements.launch_seconds;
  machine.communicators = measurements.communicators;
  return machine;
}

std::string measured_device_name(std::string_view device, std::string_view precision) {
  return concat(device, ", ", precision);
}

std::optional<std::string_view> measured_precision(const Device& device) {
  for (const std::string_view precision : {"fp32", "bf16"}) {
    if (device.name.ends_with(measured_device_name("", precision))) return precision;
  }
  return std::nullopt;
}

std::optional<std::string> warning_of_precision(const Device& device, std::string_view precision) {
  const auto measured = measured_precision(device);
  if (!measured || measured == precision) return std::nullopt;
  return concat("the cluster's description was measured in ", *measured, ", and the job trains in ", precision,
                ": predicted times will be off. copus profile --machine FILE --precision ", precision,
                " measures this machine in that precision");
}

}  // namespace copus
