#include "copus/train/run/run_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/testing/snapshot.h"
#include "copus/report/logs/run_log.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A directory in which a run has trained. No other run may delete any of it, however it was made.
class RunOutputOverAnotherRun : public ::testing::Test {
 protected:
  RunOutputOverAnotherRun() {
    std::filesystem::create_directories(run_);
    RunLog log(run_);
    for (int64_t step = 1; step <= 30; ++step) {
      StepRecord record;
      record.step = step;
      log.append(record);
    }
  }

  void write_checkpoint(int64_t step) const {
    CheckpointWriter writer(run_ / "checkpoints", 1);
    Snapshot snapshot;
    snapshot.step = step;
    snapshot.model_config = snapshot.run_config = snapshot.training_state = "{}";
    snapshot.weights.push_back(make_host_tensor("w", DType::f32, {1}));
    snapshot.optimizer.push_back(make_host_tensor("exp_avg.w", DType::f32, {1}));
    writer.write(snapshot);
    writer.finish();
  }

  // Opens the directory for a run that continues after a step. Returns the message of a refusal; empty if it is
  // accepted.
  std::string refusal(bool resume, std::optional<int64_t> after, int64_t logged_step, bool in_memory = false) const {
    RunPlan plan;
    plan.state_is_in_memory = in_memory;
    plan.directory = run_;
    plan.resume = resume;
    plan.logged_step = logged_step;
    try {
      const RunOutput output(plan, after);
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  }

  int64_t logged_steps() const { return std::ssize(read_run_log(run_ / "run.jsonl")); }

  const TemporaryFolder folder_;
  const std::filesystem::path run_ = folder_.path() / "run";
};

TEST_F(RunOutputOverAnotherRun, StepsThatThePlanDidNotKnowOfAreNotCut) {
  EXPECT_THAT(refusal(true, 20, 25), AllOf(HasSubstr("has steps up to 30"), HasSubstr("again from step 21")));
  EXPECT_THAT(refusal(true, 0, 0), HasSubstr("again from step 1"));
  EXPECT_EQ(logged_steps(), 30);
  EXPECT_EQ(refusal(true, 20, 30), "");
  EXPECT_EQ(logged_steps(), 20);
}

TEST_F(RunOutputOverAnotherRun, NoRunGoesOnFromBeforeACheckpoint) {
  write_checkpoint(20);
  EXPECT_THAT(refusal(true, 0, 30), HasSubstr("step-00000020 is a checkpoint of a later step than step 0"));
  EXPECT_THAT(refusal(true, 19, 30), HasSubstr("step-00000020"));
  EXPECT_EQ(logged_steps(), 30);
  EXPECT_EQ(refusal(true, 20, 30), "");
}

// The record of the last step may be lost with the rank that wrote the next checkpoint, so the log is cut before that
// step.
TEST_F(RunOutputOverAnotherRun, ARankWhoseStateSurvivedTakesTheDirectoryOver) {
  write_checkpoint(20);
  EXPECT_EQ(refusal(true, 19, 30, /*in_memory=*/true), "");
  EXPECT_EQ(logged_steps(), 19);
}

TEST_F(RunOutputOverAnotherRun, NoRunBeginsThere) {
  EXPECT_THAT(refusal(false, std::nullopt, 0), HasSubstr("there is a log of a run already"));
  std::filesystem::remove(run_ / "run.jsonl");
  write_checkpoint(20);
  EXPECT_THAT(refusal(false, std::nullopt, 0), HasSubstr("step-00000020"));
}

TEST_F(RunOutputOverAnotherRun, TheListOfShardsSaysHowManyTheNextStepNeeds) {
  RunPlan plan;
  plan.directory = run_;
  plan.resume = true;
  plan.logged_step = 30;
  RunOutput output(plan, 30);
  for (const int64_t needed : {2, 1}) {
    output.list_shards({"a", "b", "c"}, needed);
    EXPECT_EQ(read_text_file(run_ / "shards.txt"), concat("# The next step needs the first ", needed, ".\na\nb\nc\n"));
  }
}

}  // namespace
}  // namespace copus
