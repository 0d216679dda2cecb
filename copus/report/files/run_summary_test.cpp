#include "copus/report/files/run_summary.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "copus/base/error.h"
#include "copus/report/logs/run_log.h"
#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

using RunSummaryTest = TestDirectory;

TEST_F(RunSummaryTest, FieldNames) {
  write_summary(directory_, RunSummary{});
  const auto object = nlohmann::ordered_json::parse(read_text_file(directory_ / "summary.json"));
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  EXPECT_THAT(names,
              testing::ElementsAre("held_out_loss", "steps", "consumed_samples", "consumed_tokens", "train_seconds",
                                   "tokens_per_second", "relayouts", "batch_changes", "relayout_pause_seconds",
                                   "skipped_steps", "missing_steps", "parameters", "ended"));
  EXPECT_TRUE(object.at("held_out_loss").is_null());
  EXPECT_TRUE(object.at("relayout_pause_seconds").is_array());
}

TEST_F(RunSummaryTest, ComesBack) {
  RunSummary summary;
  summary.held_out_loss = 1.0 / 3;
  summary.steps = 1200;
  summary.train_seconds = 170.25;
  summary.relayout_pause_seconds = {0.5, 0.1};
  summary.ended = "time limit";
  write_summary(directory_, summary);
  const auto back = read_summary(directory_);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->held_out_loss, summary.held_out_loss);
  EXPECT_EQ(back->steps, 1200);
  EXPECT_EQ(back->train_seconds, 170.25);
  EXPECT_EQ(back->relayout_pause_seconds, summary.relayout_pause_seconds);
  EXPECT_EQ(back->ended, "time limit");
}

TEST_F(RunSummaryTest, NoneYet) { EXPECT_FALSE(read_summary(directory_)); }

TEST_F(RunSummaryTest, ASummaryOfAnEarlierEndIsNotCurrent) {
  EXPECT_FALSE(read_current_summary(directory_));
  RunSummary summary;
  summary.steps = 1;
  write_summary(directory_, summary);
  EXPECT_TRUE(read_current_summary(directory_)) << "there is no log";
  RunLog log(directory_);
  StepRecord record;
  record.step = 1;
  log.append(record);
  EXPECT_TRUE(read_current_summary(directory_));
  record.step = 2;  // the run was resumed
  log.append(record);
  EXPECT_FALSE(read_current_summary(directory_));
  EXPECT_TRUE(read_summary(directory_));
}

TEST_F(RunSummaryTest, DamagedFileIsNamed) {
  write_file_durably(directory_ / "summary.json", "{\"steps\": 1");
  try {
    read_summary(directory_);
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("summary.json: damaged"));
  }
}

TEST_F(RunSummaryTest, DeepNestingIsDamage) {
  write_file_durably(directory_ / "summary.json", "{\"held_out_loss\": " + deep_json() + "}");
  EXPECT_THAT(user_error([&] { read_summary(directory_); }), testing::HasSubstr("summary.json: damaged"));
}

}  // namespace
}  // namespace copus
