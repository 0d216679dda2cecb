#include "copus/orchestrator/policies/starting_configuration.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "copus/base/error.h"
#include "copus/orchestrator/predictions/candidates.h"
#include "copus/orchestrator/testing/small_run.h"

namespace copus {
namespace {

// Two nodes with a slow network: a small batch is fastest as a pipeline, a large one as data parallelism.
RunConfig slow_network(PolicyKind policy) {
  RunConfig config = small_run();
  config.adapt.policy = policy;
  config.cluster.description.between_nodes = {1e-5, 2e7};
  config.cluster.description.flops_per_second = 1e12;
  config.train.sequence_length = 8;  // few activations compared with the weights
  config.adapt.global_batches = {8, 512};
  return config;
}

double seconds_of(const PerformanceTable& table, const Configuration& configuration) {
  const auto cell = std::find_if(table.cells.begin(), table.cells.end(),
                                 [&](const TableCell& c) { return c.configuration == configuration; });
  return cell->step.seconds;
}

TEST(StartingConfiguration, IsWhatIsDescribedUnderMostPolicies) {
  for (const PolicyKind policy : {PolicyKind::none, PolicyKind::fixed, PolicyKind::copus, PolicyKind::steps}) {
    const RunConfig config = slow_network(policy);
    EXPECT_EQ(starting_configuration(config), configuration_of(config)) << to_string(policy);
  }
}

TEST(StartingConfiguration, OfARunThatOnlyAdvisesIsWhatIsDescribed) {
  RunConfig config = slow_network(PolicyKind::static_best);
  config.adapt.advise = true;
  EXPECT_EQ(starting_configuration(config), configuration_of(config));
}

TEST(StartingConfiguration, IsTheFastestOfItsBatch) {
  for (const PolicyKind policy : {PolicyKind::static_best, PolicyKind::cbs_pessimistic}) {
    const RunConfig config = slow_network(policy);
    const Configuration start = starting_configuration(config);
    EXPECT_EQ(start.global_batch, 8);
    EXPECT_NE(start.strategy, config.parallel) << "the network is not slow enough for this test";
    const PerformanceTable table = predicted_table(config, Knowledge());
    for (const TableCell& cell : table.cells) {
      if (cell.configuration.global_batch == 8) {
        EXPECT_GE(cell.step.seconds, seconds_of(table, start)) << to_string(cell.configuration);
      }
    }
  }
}

TEST(StartingConfiguration, OfTheOptimisticOneIsInTheFastestLayoutOfTheLargestBatch) {
  const RunConfig config = slow_network(PolicyKind::cbs_optimistic);
  const Configuration start = starting_configuration(config);
  EXPECT_EQ(start.global_batch, 8);
  EXPECT_NE(start.strategy, starting_configuration(slow_network(PolicyKind::cbs_pessimistic)).strategy);
  EXPECT_EQ(start.strategy.data_parallel, 2);
}

TEST(StartingConfiguration, NeedsToKnowHowFastTheClusterIs) {
  RunConfig config = slow_network(PolicyKind::static_best);
  config.cluster.description.flops_per_second = 0;
  EXPECT_THROW(starting_configuration(config), UserError);
}

}  // namespace
}  // namespace copus
