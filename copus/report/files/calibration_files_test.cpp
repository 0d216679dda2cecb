#include "copus/report/files/calibration_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"
#include "copus/config/descriptions.h"

namespace copus {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class BranchLogTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "branches.jsonl";
};

TEST_F(BranchLogTest, GoesOnBehindTheLastWholeLine) {
  const BranchOutcome outcome{.batch = 16, .rate_exponent = 0.25, .samples = 2048, .repetition = 3, .loss = 1.0 / 3};
  EXPECT_TRUE(read_branch_log(path_).empty());
  {
    BranchLog log(path_);
    log.append(outcome);
    log.append({.batch = 8, .loss = std::numeric_limits<double>::infinity()});
  }
  std::ofstream(path_, std::ios::app) << "{\"batch\":";
  {
    BranchLog log(path_);
    const std::vector<BranchOutcome> outcomes = read_branch_log(path_);
    ASSERT_EQ(outcomes.size(), 2U);
    const BranchOutcome& first = outcomes.front();
    EXPECT_EQ(first.batch, 16);
    EXPECT_EQ(first.rate_exponent, 0.25);
    EXPECT_EQ(first.samples, 2048);
    EXPECT_EQ(first.repetition, 3);
    EXPECT_EQ(first.loss, 1.0 / 3);
    EXPECT_FALSE(std::isfinite(outcomes.back().loss));
    log.append(outcome);
  }
  EXPECT_EQ(read_branch_log(path_).size(), 3U);
}

TEST_F(BranchLogTest, OneProcessAtATime) {
  const BranchLog log(path_);
  EXPECT_THROW(BranchLog second(path_), UserError);
}

TEST_F(BranchLogTest, NamesADamagedLine) {
  std::ofstream(path_) << "{\"batch\": 8}\n";
  EXPECT_THAT([this] { read_branch_log(path_); }, ThrowsMessage<UserError>(HasSubstr("rate_exponent")));
}

TEST_F(BranchLogTest, ADeepLineIsDamaged) {
  std::ofstream(path_) << "{\"batch\": " << deep_json() << "}\n";
  EXPECT_THAT([this] { read_branch_log(path_); }, ThrowsMessage<UserError>(HasSubstr("not a JSON object")));
}

TEST(CalibrationReport, FieldNames) {
  CalibrationReport report;
  report.rate_exponent = Estimate{0.25, 0, 0.5};
  report.critical_batches = {{1e6, 200, 300, 0.1}, {4e6, 500, 700, 0.2}};
  const nlohmann::json object = nlohmann::json::parse(to_json(report));
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(
                         "format", "version", "calibration", "calibration_low", "calibration_high", "alpha",
                         "critical_updates", "critical_batches", "deviation", "free_fit", "rate_exponent",
                         "noise_scale", "noise_scale_low", "noise_scale_high", "reference_batch", "learning_rate",
                         "branches", "outside", "step", "consumed_samples"));
  EXPECT_EQ(object["rate_exponent"]["high"], 0.5);
}

TEST(CalibrationReport, ARunReadsItsCriticalBatches) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "calibration.json";
  CalibrationReport report;
  report.critical_batches = {{1e6, 200, 300, 0.1}, {4e6, 500, 700, 0.2}};
  write_file_durably(path, to_json(report));
  EXPECT_EQ(read_calibration_file(path, "a test"), report.critical_batches);
}

}  // namespace
}  // namespace copus
