#include "copus/performance/measured/machine.h"

#include <gtest/gtest.h>

#include "copus/performance/link_cost.h"

namespace copus {

namespace {

// Measurements of a device that computes 8e9 operations per second, half of that with 32 rows, and a quarter with depth
// 16. Collectives take 10 us per round and reach 2e9 bytes per second, small ones half of that.
MachineMeasurements measurements() {
  MachineMeasurements m;
  m.name = "a machine";
  m.devices = 4;
  m.memory_bytes = 2e9;
  m.memory_bytes_per_second = 5e9;
  m.launch_seconds = 1e-6;
  m.reference = {1000, 1000, 400, 0.1};
  m.matmuls = {{32, 1000, 400, 2 * 0.1 * 32 / 1000}, {1000, 1000, 16, 4 * 0.1 * 16 / 400}};
  m.attentions = {{128, 4e9, 2e9}, {512, 6e9, 3e9}};
  m.ranks = 3;
  m.all_reduces = {{12, 40e-6}, {3000, 40e-6 + 4 * 1000 / 1e9}, {3000000, 40e-6 + 4 * 1e6 / 2e9}};
  return m;
}

TEST(DescribeMachine, CurvesAreSharesOfTheReferenceProduct) {
  const Device device = describe_machine(measurements()).device;
  EXPECT_NEAR(device.matmul_flops_per_second, 8e9, 1);
  EXPECT_NEAR(device.matmul_by_rows.at(32), 0.5, 1e-12);
  EXPECT_NEAR(device.matmul_by_rows.at(1000), 1, 1e-12);
  EXPECT_NEAR(device.matmul_by_depth.at(16), 0.25, 1e-12);
  EXPECT_NEAR(device.matmul_by_columns.at(16), 1, 1e-12);
  EXPECT_NEAR(device.attention_forward.at(128), 0.5, 1e-12);
  EXPECT_NEAR(device.attention_backward.at(512), 0.375, 1e-12);
}

TEST(DescribeMachine, NothingIsFasterThanASustainedReference) {
  MachineMeasurements m = measurements();
  m.matmuls.push_back({2000, 1000, 400, 0.1});
  EXPECT_NEAR(describe_machine(m).device.matmul_by_rows.at(2000), 2, 1e-12);
  m.reference_is_sustained = true;
  EXPECT_NEAR(describe_machine(m).device.matmul_by_rows.at(2000), 1, 1e-12);
  EXPECT_NEAR(describe_machine(m).device.matmul_by_rows.at(32), 0.5, 1e-12);
}

TEST(DescribeMachine, TheLinkGivesBackTheCollectivesItWasMeasuredBy) {
  const MachineMeasurements m = measurements();
  const Link link = describe_machine(m).within_node;
  EXPECT_NEAR(link.latency_seconds, 10e-6, 1e-12);
  EXPECT_NEAR(link.bytes_per_second, 2e9, 1);
  EXPECT_NEAR(link.efficiency.at(3000), 0.5, 1e-12);
  EXPECT_NEAR(link.efficiency.at(3000000), 1, 1e-12);
  EXPECT_NEAR(all_reduce_seconds(link, 3, 3000000), m.all_reduces[2].seconds, 1e-9);
}

TEST(DescribeMachine, IsOneNodeWhoseRanksShareItsDevices) {
  const ClusterDescription machine = describe_machine(measurements());
  EXPECT_EQ(machine.devices_per_node, 4);
  EXPECT_EQ(machine.ranks_per_node, most_ranks_of_machine);
  EXPECT_EQ(machine.between_nodes, machine.within_node);
  EXPECT_EQ(machine.device.memory_bytes, 5e8);
  EXPECT_EQ(machine.device.peak_flops_per_second, 0);
}

TEST(DescribeMachine, IsANodeOfAsManyRanksAsItHasDevicesOfTheirOwn) {
  MachineMeasurements m = measurements();
  m.are_shared = false;
  const ClusterDescription machine = describe_machine(m);
  EXPECT_EQ(machine.devices_per_node, 0);
  EXPECT_EQ(machine.ranks_per_node, 4);
  EXPECT_EQ(machine.device.memory_bytes, 5e8);
}

TEST(MeasuredDeviceName, AJobInAnotherPrecisionIsWarned) {
  Device device;
  device.name = measured_device_name("EPYC, one core", "bf16");
  EXPECT_EQ(device.name, "EPYC, one core, bf16");
  ASSERT_TRUE(warning_of_precision(device, "fp32"));
  EXPECT_NE(warning_of_precision(device, "fp32")->find("measured in bf16, and the job trains in fp32"),
            std::string::npos);
  EXPECT_FALSE(warning_of_precision(device, "bf16"));
  device.name = "H100 SXM 80GB";  // a name without precision
  EXPECT_FALSE(warning_of_precision(device, "fp32"));
  EXPECT_FALSE(warning_of_precision(device, "bf16"));
}

}  // namespace

}  // namespace copus
