// Tests what the predictions of a job take from its cluster's description.
#include "copus/orchestrator/predictions/job_model.h"

#include <gtest/gtest.h>

#include "copus/orchestrator/testing/small_run.h"

namespace copus {
namespace {

TEST(OwnJob, ARelayoutBetweenMachinesTakesTheTimeOfTheirLinksOnTheRealClockToo) {
  RunConfig config = small_run();
  config.cluster.clock = ClockKind::real;
  ClusterDescription& cluster = config.cluster.description;
  cluster.within_node = cluster.between_nodes = {.latency_seconds = 0, .bytes_per_second = 1e6};
  const ParallelStrategy data{.data_parallel = 2}, pipeline{.pipeline_parallel = 2};
  const auto seconds = [&](int64_t ranks_per_node) {
    cluster.ranks_per_node = ranks_per_node;
    return job_model_of(config)->move_seconds(pipeline, data);
  };
  const double copying = seconds(2), sending = seconds(1);
  ASSERT_GT(copying, 0);
  EXPECT_GT(sending, 100 * copying) << "a link moves 1 MB/s, and a core copies 4 GB/s";
}

TEST(OwnJob, RanksThatShareDevicesShareTheirMemory) {
  RunConfig config = small_run();
  ClusterDescription& cluster = config.cluster.description;
  cluster.ranks_per_node = 2;
  const Configuration configuration = configuration_of(config);
  const auto is_too_large = [&](int64_t devices, double memory_in_predictions) {
    cluster.devices_per_node = devices;
    cluster.device.memory_bytes = memory_in_predictions * job_model_of(config)->memory_bytes(configuration);
    return job_model_of(config)->out_of_memory_reason(configuration).has_value();
  };
  EXPECT_FALSE(is_too_large(0, 1.1));
  EXPECT_TRUE(is_too_large(0, 0.6));
  EXPECT_TRUE(is_too_large(1, 1.1));   // half of it
  EXPECT_FALSE(is_too_large(4, 0.6));  // twice of it
}

}  // namespace
}  // namespace copus
