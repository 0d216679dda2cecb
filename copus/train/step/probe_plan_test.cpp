#include "copus/train/step/probe_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RunConfig config_of(int64_t global_batch, int64_t micro_batch, int64_t data_parallel) {
  RunConfig config;
  config.train.global_batch = global_batch;
  config.train.micro_batch = micro_batch;
  config.train.sequence_length = 15;
  config.parallel.data_parallel = data_parallel;
  config.noise_scale.split_interval = 4;
  return config;
}

// Plans for the initial configuration.
ProbePlan plan_probe(const RunConfig& config, int64_t step, bool measure) {
  return copus::plan_probe(config, configuration_of(config), step, measure);
}

std::optional<std::string> why_noise_is_not_measured(const RunConfig& config) {
  return copus::why_noise_is_not_measured(config, configuration_of(config));
}

RunConfig with_sequence_parallel(RunConfig config, int64_t tensor_parallel) {
  config.parallel.sequence_parallel = true;
  config.parallel.tensor_parallel = tensor_parallel;
  return config;
}

TEST(ProbePlan, SeveralMicroBatchesOfOneRankTellByTheFirst) {
  for (const int64_t step : {1, 2, 3, 4}) {
    const ProbePlan plan = plan_probe(config_of(8, 3, 1), step, true);
    EXPECT_EQ(plan.source, ProbeSource::prefix);
    EXPECT_EQ(plan.small_batch, 3);
    EXPECT_THAT(plan.micro_batches, ElementsAre(3, 3, 2));
  }
}

TEST(ProbePlan, SeveralRanksTellByTheirShares) {
  for (const int64_t step : {1, 4}) {
    const ProbePlan plan = plan_probe(config_of(12, 4, 3), step, true);
    EXPECT_EQ(plan.source, ProbeSource::rank);
    EXPECT_EQ(plan.small_batch, 4);
    EXPECT_THAT(plan.micro_batches, ElementsAre(4));
    const ProbePlan of_several = plan_probe(config_of(16, 3, 2), step, true);
    EXPECT_EQ(of_several.source, ProbeSource::rank);
    EXPECT_EQ(of_several.small_batch, 8);
    EXPECT_THAT(of_several.micro_batches, ElementsAre(3, 3, 2));
  }
}

TEST(ProbePlan, AStepThatIsOneMicroBatchIsCutEverySoOften) {
  for (int64_t step = 1; step <= 12; ++step) {
    const ProbePlan plan = plan_probe(config_of(7, 8, 1), step, true);
    if (step % 4 == 0) {
      EXPECT_EQ(plan.source, ProbeSource::prefix);
      EXPECT_EQ(plan.small_batch, 1);
      EXPECT_THAT(plan.micro_batches, ElementsAre(1, 6));
    } else {
      EXPECT_EQ(plan.source, ProbeSource::none);
      EXPECT_EQ(plan.small_batch, 0);
      EXPECT_THAT(plan.micro_batches, ElementsAre(7));
    }
  }
  EXPECT_EQ(why_noise_is_not_measured(config_of(7, 8, 1)), std::nullopt);
  EXPECT_THAT(plan_probe(config_of(33, 64, 1), 4, true).micro_batches, ElementsAre(4, 29)) << "an eighth";
}

TEST(ProbePlan, NothingIsMeasuredOrCutWithoutBeingAsked) {
  for (const RunConfig& config : {config_of(16, 4, 2), config_of(8, 4, 2), config_of(4, 4, 1)}) {
    const ProbePlan plan = plan_probe(config, 4, false);
    EXPECT_EQ(plan.source, ProbeSource::none);
    EXPECT_EQ(plan.small_batch, 0);
    EXPECT_EQ(static_cast<int64_t>(plan.micro_batches.size()),
              config.train.global_batch / config.parallel.data_parallel / 4);
  }
}

TEST(ProbePlan, AStepThatIsOneMicroBatchIsCutForDualNorms) {
  RunConfig config = config_of(7, 8, 1);
  config.noise_scale.dual_interval = 3;
  for (int64_t step = 1; step <= 12; ++step) {
    const ProbePlan plan = plan_probe(config, step, true);
    EXPECT_EQ(plan.measures_dual_norms, step % 3 == 0) << step;
    EXPECT_EQ(plan.micro_batches.size(), step % 3 == 0 || step % 4 == 0 ? 2 : 1) << step;
    EXPECT_EQ(measures_dual_norms(config, step), step % 3 == 0) << step;
  }
  EXPECT_TRUE(plan_probe(config_of(1, 8, 1), 3, true).micro_batches.size() == 1);
  config.train.global_batch = 1;
  EXPECT_FALSE(plan_probe(config, 3, true).measures_dual_norms) << "one sample cannot be cut";
}

TEST(ProbePlan, OneSampleCannotBeCut) {
  const RunConfig config = config_of(1, 8, 1);
  EXPECT_EQ(plan_probe(config, 4, true).source, ProbeSource::none);
  EXPECT_THAT(why_noise_is_not_measured(config).value_or(""), HasSubstr("train.global_batch"));
}

// Samples have 15 tokens: four ranks can divide four samples evenly, two ranks two.
TEST(ProbePlan, PartsAreSharedEvenlyAmongSequenceParallelRanks) {
  const RunConfig none_fits = with_sequence_parallel(config_of(4, 4, 1), 4);
  EXPECT_EQ(plan_probe(none_fits, 4, true).source, ProbeSource::none);
  EXPECT_THAT(plan_probe(none_fits, 4, true).micro_batches, ElementsAre(4));
  EXPECT_THAT(why_noise_is_not_measured(none_fits).value_or(""),
              AllOf(HasSubstr("parallel.sequence_parallel"), HasSubstr("train.micro_batch"), HasSubstr("4 ranks")));
  const RunConfig odd = with_sequence_parallel(config_of(5, 8, 1), 2);
  EXPECT_EQ(plan_probe(odd, 4, true).source, ProbeSource::none) << "one of two parts is odd";
  EXPECT_THAT(plan_probe(with_sequence_parallel(config_of(6, 8, 1), 2), 4, true).micro_batches, ElementsAre(2, 4));
  const RunConfig both = with_sequence_parallel(config_of(8, 8, 1), 4);
  EXPECT_THAT(plan_probe(both, 4, true).micro_batches, ElementsAre(4, 4));
  EXPECT_EQ(why_noise_is_not_measured(both), std::nullopt);
  // This configuration splits no steps.
  EXPECT_EQ(why_noise_is_not_measured(with_sequence_parallel(config_of(8, 4, 1), 4)), std::nullopt);
  EXPECT_EQ(why_noise_is_not_measured(with_sequence_parallel(config_of(8, 4, 2), 4)), std::nullopt);
}

}  // namespace
}  // namespace copus
