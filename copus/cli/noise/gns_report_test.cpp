#include "copus/cli/noise/gns_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace copus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

GnsReport measured() {
  GnsReport report;
  report.noise = {{0.5, 0.01}, {10, 0.2}, 20, 18, 22.5};
  report.batches = 32;
  report.large_batch = 64;
  report.sequence_length = 128;
  report.step = 300;
  report.consumed_samples = 2400;
  report.seconds = 1.5;
  return report;
}

TEST(GnsReport, TellsTheNoiseScaleInSequencesAndTokens) {
  const std::string table = to_table(measured());
  EXPECT_THAT(table, HasSubstr("20 sequences (95 % interval: 18 to 22.5)\n"));
  EXPECT_THAT(table, HasSubstr("2560 tokens (95 % interval: 2304 to 2880)\n"));
  EXPECT_THAT(table, HasSubstr("0.5 +- 0.01\n"));
  EXPECT_THAT(table, HasSubstr("10 +- 0.2 of a sequence\n"));
  EXPECT_THAT(table, HasSubstr("32 batches of 64 sequences of 128 tokens, after step 300, in 1.50 s\n"));
  EXPECT_THAT(table, Not(HasSubstr("lower bound")));
}

TEST(GnsReport, ALowerBoundIsCalledOne) {
  GnsReport report = measured();
  report.noise.value.reset();
  report.noise.high.reset();
  EXPECT_THAT(to_table(report), HasSubstr("at least 18 sequences\n"));
  EXPECT_THAT(to_table(report), HasSubstr("at least 2304 tokens\n"));
  EXPECT_THAT(to_table(report), HasSubstr("more --batches"));
  const auto object = nlohmann::json::parse(to_json(report));
  EXPECT_TRUE(object.at("noise_scale").is_null());
  EXPECT_TRUE(object.at("noise_scale_high").is_null());
  EXPECT_EQ(object.at("noise_scale_low"), 18);
}

TEST(GnsReport, JsonHasEveryField) {
  EXPECT_EQ(nlohmann::json::parse(to_json(measured())),
            nlohmann::json::parse(R"({"noise_scale": 20.0, "noise_scale_low": 18.0, "noise_scale_high": 22.5,
              "squared_gradient": 0.5, "squared_gradient_error": 0.01, "trace": 10.0, "trace_error": 0.2,
              "batches": 32, "small_batch": 1, "large_batch": 64, "step": 300, "consumed_samples": 2400,
              "sequence_length": 128, "seconds": 1.5})"));
  GnsReport of_a_model = measured();
  of_a_model.step.reset();
  of_a_model.consumed_samples.reset();
  const auto object = nlohmann::json::parse(to_json(of_a_model));
  EXPECT_TRUE(object.at("step").is_null() && object.at("consumed_samples").is_null());
  EXPECT_THAT(to_table(of_a_model), Not(HasSubstr("after step")));
}

}  // namespace
}  // namespace copus
