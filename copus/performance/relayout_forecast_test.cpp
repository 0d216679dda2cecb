// Compares forecasts of re-layouts with their plans and with the modelled truth.
#include "copus/performance/relayout_forecast.h"

#include <gtest/gtest.h>

#include <vector>

#include "copus/performance/modelled_truth.h"
#include "copus/performance/testing/described_job.h"

namespace copus {
namespace {

RelayoutForecast forecast_on(const ClusterDescription& cluster, double copied_bytes_per_second = 0) {
  return {described_model(), described_sequence_length, cluster, copus_in_bf16(), copied_bytes_per_second};
}

const ParallelStrategy of_data{.data_parallel = 8, .zero_stage = 1};
const ParallelStrategy of_stages{.data_parallel = 2, .pipeline_parallel = 4};
const ParallelStrategy of_tensors{.data_parallel = 2, .tensor_parallel = 4};

TEST(RelayoutForecast, IsThePlansAndTheModelledTruths) {
  RelayoutForecast forecast = forecast_on(described_cluster());
  ModelledTruth truth(described_model(), described_sequence_length, described_cluster(), copus_in_bf16(),
                      {.size = 0.3, .seed = 7});
  const std::vector<ParallelStrategy> all = {of_data, of_stages, of_tensors};
  for (const ParallelStrategy& from : all) {
    for (const ParallelStrategy& to : all) {
      const double seconds = forecast.seconds(from, to);
      EXPECT_EQ(seconds, relayout_seconds(described_relayout(from, to), described_cluster()));
      EXPECT_EQ(seconds, truth.relayout_seconds(from, to));
      EXPECT_EQ(seconds, forecast.seconds(from, to)) << "asked again";
      EXPECT_EQ(seconds > 0, from != to);
    }
  }
  EXPECT_NE(forecast.seconds(of_data, of_stages), forecast.seconds(of_data, of_tensors)) << "targets differ";
}

// The plan moves no bytes either, so the shortcut is exact.
TEST(RelayoutForecast, WhatMovesNoStateCostsNothing) {
  ParallelStrategy to = of_stages;
  to.schedule = PipelineSchedule::zb_h1;
  ParallelStrategy recomputed = of_tensors;
  recomputed.recompute = Recompute::full;
  ParallelStrategy cut = of_tensors;
  cut.sequence_parallel = true;
  RelayoutForecast on_links = forecast_on(described_cluster()), in_memory = forecast_on(described_cluster(), 4e9);
  for (const auto& [from, target] : {std::pair(of_stages, to), {of_tensors, recomputed}, {recomputed, cut}}) {
    EXPECT_EQ(plan_relayout(described_relayout(from, target), 0).bytes_copied, 0);
    EXPECT_EQ(on_links.seconds(from, target), 0);
    EXPECT_EQ(in_memory.seconds(from, target), 0);
    EXPECT_EQ(on_links.seconds(of_data, target), on_links.seconds(of_data, from)) << "they do not count beside others";
  }
  ParallelStrategy large{.data_parallel = 1024}, large_recomputed = large;
  large_recomputed.recompute = Recompute::full;
  EXPECT_EQ(on_links.seconds(large, large_recomputed), 0);
}

TEST(RelayoutForecast, InOneMemoryItIsThatOfCopyingByAsManyRanksAsThereAreDevices) {
  const auto bytes = static_cast<double>(plan_relayout(described_relayout(of_data, of_tensors), 0).bytes_copied);
  ClusterDescription machine = described_cluster();
  machine.within_node = machine.between_nodes = {};
  EXPECT_DOUBLE_EQ(forecast_on(machine, 4e9).seconds(of_data, of_tensors), bytes / 8 / 4e9);
  machine.ranks_per_node = 8;
  machine.devices_per_node = 2;
  // If all ranks share a node, senders may differ, but not the bytes.
  EXPECT_DOUBLE_EQ(forecast_on(machine, 4e9).seconds(of_data, of_tensors), bytes / 2 / 4e9);
  machine.devices_per_node = 16;
  EXPECT_DOUBLE_EQ(forecast_on(machine, 4e9).seconds(of_data, of_tensors), bytes / 8 / 4e9);
}

TEST(RelayoutForecast, OfManyRanksItIsThatOfReceivingTheState) {
  const ParallelStrategy from{.data_parallel = 1024}, to{.data_parallel = 512, .tensor_parallel = 2};
  const double bytes = 12 * static_cast<double>(count_parameters(described_model())) / 2;
  const Link link = described_cluster().between_nodes;
  // Both tensor-parallel ranks hold the norms.
  EXPECT_NEAR(forecast_on(described_cluster()).seconds(from, to), link.latency_seconds + bytes / link.bytes_per_second,
              1e-3 * bytes / link.bytes_per_second);
  EXPECT_NEAR(forecast_on(described_cluster(), 4e9).seconds(from, to), bytes / 4e9, 1e-3 * bytes / 4e9);
  const ParallelStrategy interleaved{.data_parallel = 256,
                                     .pipeline_parallel = 4,
                                     .virtual_stages = 2,
                                     .schedule = PipelineSchedule::interleaved_1f1b};
  EXPECT_GT(forecast_on(described_cluster()).seconds(from, interleaved), 0);
}

}  // namespace
}  // namespace copus
