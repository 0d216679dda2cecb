#include "copus/simulate/job.h"

#include <gtest/gtest.h>

#include <cmath>

#include "copus/base/testing/test_support.h"
#include "copus/orchestrator/predictions/candidates.h"
#include "copus/simulate/testing/small_job.h"

namespace copus {
namespace {

TEST(SimulatedJob, ItsTableIsThatOfAController) {
  const SimulatedJob job = small_job();
  RunConfig config = job.config;
  config.train.max_tokens = 1 << 20;
  config.adapt.policy = PolicyKind::fixed;
  const PerformanceTable table = make_table(config.model, config.train.sequence_length, config.cluster.as_timed(),
                                            training_system_of(config), search_space_of(config), Knowledge());
  ASSERT_GT(table.cells.size(), 20);
  ASSERT_EQ(job.believed->cells.size(), table.cells.size());
  for (size_t i = 0; i < table.cells.size(); ++i) {
    EXPECT_EQ(job.believed->cells[i].configuration, table.cells[i].configuration);
  }
}

TEST(SimulatedJob, BeginsInTheFastestConfigurationOfABatch) {
  const SimulatedJob job = small_job();
  const TableCell& fastest = fastest_believed(*job.believed, 16);
  EXPECT_EQ(fastest.configuration.global_batch, 16);
  for (const TableCell& cell : job.believed->cells) {
    if (cell.configuration.global_batch != 16) continue;
    EXPECT_LE(fastest.parts.total(), cell.parts.total());
  }
  EXPECT_EQ(user_error([&] { fastest_believed(*job.believed, 5); }), "no configuration with a global batch of 5 fits");
}

TEST(TrueSeconds, WithoutErrorsAreThoseBelieved) {
  const SimulatedJob job = small_job();
  const auto seconds =
      draw_true_seconds(*job.believed, {.compute = 0, .links = 0, .bubble = 0, .residual = 0, .stalled = 0}, 1);
  ASSERT_EQ(seconds.size(), job.believed->cells.size());
  for (const TableCell& cell : job.believed->cells) {
    EXPECT_DOUBLE_EQ(seconds.at(cell.configuration), cell.parts.total());
  }
}

TEST(TrueSeconds, AreAFunctionOfTheSeed) {
  const SimulatedJob job = small_job();
  EXPECT_EQ(draw_true_seconds(*job.believed, {}, 1), draw_true_seconds(*job.believed, {}, 1));
  EXPECT_NE(draw_true_seconds(*job.believed, {}, 1), draw_true_seconds(*job.believed, {}, 2));
}

TEST(TrueSeconds, ConfigurationsThatShareDegreesDeviateAlike) {
  const SimulatedJob job = small_job();
  const StepTimeError error{.compute = 0, .links = 0, .bubble = 0, .residual = 0.2, .stalled = 0};
  const auto seconds = draw_true_seconds(*job.believed, error, 3);
  std::map<std::pair<ParallelStrategy, int64_t>, double> deviations;
  for (const TableCell& cell : job.believed->cells) {
    const Configuration& configuration = cell.configuration;
    const double deviation = std::log(seconds.at(configuration) / cell.parts.total());
    const auto [known, is_new] = deviations.try_emplace({configuration.strategy, configuration.micro_batch}, deviation);
    EXPECT_NEAR(known->second, deviation, 1e-12) << "the global batch alone makes no difference";
  }
  EXPECT_GT(deviations.size(), 5);
}

// Measures the mean square of the deviations over many clusters.
TEST(TrueSeconds, DeviateAsMuchAsIsSaid) {
  const SimulatedJob job = small_job();
  const StepTimeError error{.compute = 0, .links = 0, .bubble = 0, .residual = 0.2, .stalled = 0};
  double squares = 0, count = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto seconds = draw_true_seconds(*job.believed, error, seed);
    const TableCell& cell = job.believed->cells.front();
    squares += std::pow(std::log(seconds.at(cell.configuration) / cell.parts.total()), 2);
    ++count;
  }
  EXPECT_NEAR(std::sqrt(squares / count), 0.2, 0.03);
}

}  // namespace
}  // namespace copus
