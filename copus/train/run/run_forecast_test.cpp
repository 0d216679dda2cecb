#include "copus/train/run/run_forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "copus/base/error.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/orchestrator/testing/small_run.h"

namespace copus {
namespace {

using ::testing::HasSubstr;

// Returns the bytes that the memory model predicts for both data-parallel ranks together.
double predicted(const RunConfig& config) {
  return 2 * memory_model_of(config).predict(configuration_of(config)).parts.total();
}

// Returns the message with which a run is refused; empty if it is accepted.
std::string refusal(const RunConfig& config, double left) {
  try {
    check_memory(config, configuration_of(config), left);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(CheckMemory, RefusesWhatCertainlyDoesNotFitAndNamesWhatDoes) {
  RunConfig config = small_run();
  config.train.global_batch = 1024;
  config.train.micro_batch = 512;
  RunConfig smaller = config;
  smaller.train.micro_batch = 128;
  EXPECT_THAT(refusal(config, predicted(smaller)), HasSubstr("train.micro_batch = 128 fits"));
  smaller.train.micro_batch = 1;
  EXPECT_THAT(refusal(config, 0.999 * predicted(smaller)), HasSubstr("train.recompute = \"full\""));
  smaller.train.sequence_length = 1;
  EXPECT_THAT(refusal(config, predicted(smaller)), HasSubstr("no train.micro_batch fits"));
  EXPECT_THAT(refusal(config, 1000), HasSubstr("state alone take"));
}

TEST(CheckMemory, WarnsOfWhatMayNotFitAndIsSilentOtherwise) {
  const RunConfig config = small_run();
  const double needed = predicted(config);
  const auto warning = check_memory(config, configuration_of(config), needed);
  ASSERT_TRUE(warning);
  EXPECT_THAT(*warning, HasSubstr("a smaller train.micro_batch needs less"));
  EXPECT_FALSE(check_memory(config, configuration_of(config), needed + 1e9));
}

TEST(CheckMemory, APrecisionThatTheRunWillChooseIsTheOneThatNeedsLess) {
  RunConfig config = small_run();
  double least = predicted(config);  // in fp32
  config.execution.precision = Precision::bf16;
  least = std::min(least, predicted(config));
  config.execution.precision = Precision::automatic;
  EXPECT_EQ(refusal(config, least), "");
  EXPECT_NE(refusal(config, 0.5 * least), "");
}

TEST(WhyRanksTakeTurns, SpeaksOfMoreRanksThanCoresAlone) {
  EXPECT_FALSE(why_ranks_take_turns(2, 2));
  EXPECT_THAT(why_ranks_take_turns(64, 2).value_or(""), HasSubstr("64 ranks share 2 cores"));
}

}  // namespace
}  // namespace copus
