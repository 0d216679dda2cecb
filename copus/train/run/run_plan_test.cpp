#include "copus/train/run/run_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/testing/snapshot.h"
#include "copus/orchestrator/learning_rate/rate_rule.h"
#include "copus/train/step/training_state.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

namespace fs = std::filesystem;

constexpr const char* config_text = R"(
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
[data]
train = "corpus.txt"
mask_across_documents = false
[train]
sequence_length = 16
max_steps = 10
)";

RunConfig config_with(const std::vector<std::string>& overrides) {
  return parse_run_config(config_text, "run.toml", overrides);
}

// A configuration without data.mask_across_documents.
RunConfig from_before_the_mask() {
  RunConfig config = config_with({});
  config.data.mask_across_documents.reset();
  return config;
}

TEST(CheckChanges, AllowsLimitsAndWhatOnlyObserves) {
  const std::vector<std::string> overrides = {"train.max_steps=20", "evaluate.interval=5", "checkpoint.keep_last=3",
                                              "log.interval=1",     "train.threads=2",     "data.train=\"moved.txt\""};
  EXPECT_THAT(check_changes(config_with({}), config_with(overrides), {}), SizeIs(6));
  EXPECT_THAT(check_changes(config_with({}), config_with({}), {}), IsEmpty());
}

TEST(CheckChanges, AllowsAnotherLayoutAndCluster) {
  const std::vector<std::string> overrides = {
      "parallel.data_parallel=2",
      "parallel.zero_stage=1",
      "train.recompute=full",
      "cluster.ranks_per_node=2",
      "cluster.within_node={ latency_microseconds = 1, gigabytes_per_second = 8 }",
      "cluster.between_nodes={ latency_microseconds = 2, gigabytes_per_second = 4 }",
      "cluster.clock=virtual"};
  // A described cluster is written with all settings, including defaults.
  const size_t changes = overrides.size() + 4;  // num_ranks, devices_per_node, rails, measured_nodes
  EXPECT_THAT(check_changes(config_with({}), config_with(overrides), {}),
              AllOf(SizeIs(changes), Contains(HasSubstr("parallel.data_parallel: 1 -> 2"))));
  EXPECT_THAT(check_changes(config_with(overrides), config_with({}), {}), SizeIs(changes));
}

TEST(CheckChanges, AllowsAnotherPolicy) {
  std::vector<std::string> overrides = {"cluster.ranks_per_node=1",
                                        "cluster.within_node={ latency_microseconds = 1, gigabytes_per_second = 8 }",
                                        "cluster.between_nodes={ latency_microseconds = 2, gigabytes_per_second = 4 }",
                                        "cluster.clock=virtual", "cluster.teraflops_per_rank=0.05"};
  const RunConfig then = config_with(overrides);
  overrides.insert(overrides.end(), {"adapt.policy=static", "adapt.global_batches=[32, 64]"});
  EXPECT_THAT(check_changes(then, config_with(overrides), {}),
              AllOf(SizeIs(2), Contains("adapt.policy: 'none' -> 'static'")));
}

TEST(CheckChanges, RefusesAnotherModelDataOrSeedNamingTheFieldAndBothValues) {
  const auto resume_with = [](const std::string& override_text) {
    return [override_text] { check_changes(config_with({}), config_with({override_text}), {override_text}); };
  };
  EXPECT_THAT(resume_with("train.seed=5"),
              ThrowsMessage<UserError>(AllOf(HasSubstr("train.seed"), HasSubstr("1234"), HasSubstr("is 5"))));
  EXPECT_THAT(resume_with("model.hidden_size=64"),
              ThrowsMessage<UserError>(AllOf(HasSubstr("model.hidden_size"), HasSubstr("32"), HasSubstr("64"))));
  EXPECT_THAT(resume_with("train.sequence_length=8"), ThrowsMessage<UserError>(HasSubstr("train.sequence_length")));
  EXPECT_THAT(resume_with("data.held_out_fraction=0.5"), ThrowsMessage<UserError>(HasSubstr("data.held_out_fraction")));
  EXPECT_THAT(resume_with("optimizer.reference_batch=8"), ThrowsMessage<UserError>(HasSubstr("cannot change")));
  EXPECT_THAT(resume_with("optimizer.batch_scaling=none"), ThrowsMessage<UserError>(HasSubstr("cannot change")));
  EXPECT_THAT(resume_with("optimizer.kind=signum"), ThrowsMessage<UserError>(HasSubstr("cannot change")));
  EXPECT_THAT(resume_with("optimizer.scale_beta2=true"), ThrowsMessage<UserError>(HasSubstr("cannot change")));
  EXPECT_THAT(resume_with("optimizer.scale_weight_decay=true"), ThrowsMessage<UserError>(HasSubstr("cannot change")));
}

TEST(CheckChanges, ALengthOfDocumentsThatTheRunMeasuredIsNoChange) {
  const RunConfig measured = config_with({"data.mask_across_documents=true", "data.document_length=12.5"});
  EXPECT_THAT(check_changes(measured, config_with({"data.mask_across_documents=true"}), {}), IsEmpty());
  EXPECT_THAT(check_changes(measured, config_with({"data.mask_across_documents=true", "data.document_length=8"}), {}),
              SizeIs(1));
}

TEST(CheckChanges, DocumentsAttendToEachOtherInARunFromBeforeTheSetting) {
  const RunConfig old = from_before_the_mask(), apart = config_with({"data.mask_across_documents=true"}),
                  together = config_with({"data.mask_across_documents=false"});
  EXPECT_THAT(check_changes(old, old, {}), IsEmpty());
  EXPECT_THAT(check_changes(old, together, {}), IsEmpty());
  EXPECT_THAT(check_changes(apart, old, {}), IsEmpty());
  EXPECT_THAT([&] { check_changes(old, apart, {}); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("data.mask_across_documents was false"), HasSubstr("true"))));
  EXPECT_THAT([&] { check_changes(apart, together, {}); },
              ThrowsMessage<UserError>(HasSubstr("data.mask_across_documents was true")));
}

TEST(CheckChanges, ChangesTheTrainingFunctionOnlyByAnOverride) {
  const RunConfig now = config_with({"optimizer.lr=0.5"});
  EXPECT_THAT([&] { check_changes(config_with({}), now, {}); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("optimizer.lr"), HasSubstr("--set"))));
  EXPECT_THAT(check_changes(config_with({}), now, {"optimizer.lr=0.5"}),
              ElementsAre(AllOf(HasSubstr("optimizer.lr"), HasSubstr("0.001 -> 0.5"))));
}

TEST(CheckChanges, NumbersReadAsTheyAreWritten) {
  EXPECT_THAT(check_changes(config_with({"train.max_seconds=0.3"}), config_with({"train.max_seconds=0.4"}), {}),
              ElementsAre("train.max_seconds: 0.3 -> 0.4"));
}

TEST(CheckChanges, AutomaticPrecisionIsWhatItWasResolvedTo) {
  const RunConfig then = config_with({"train.precision=\"fp32\""});
  EXPECT_THAT(check_changes(then, config_with({}), {}), IsEmpty());
  EXPECT_THAT([&] { check_changes(then, config_with({"train.precision=\"bf16\""}), {}); },
              ThrowsMessage<UserError>(HasSubstr("train.precision")));
}

class PlanRun : public ::testing::Test {
 protected:
  PlanRun() { std::ofstream(config_path()) << config_text; }

  std::string config_path() const { return (folder_.path() / "tiny.toml").string(); }
  std::string run_directory() const { return (folder_.path() / "run").string(); }

  // Creates a run that has begun. `step` > 0: with a checkpoint of that step, written in the configuration `now` if
  // given, after a move.
  void begin_run(int64_t step, const RunConfig& config = config_with({}),
                 const std::optional<Configuration>& now = std::nullopt) const {
    fs::create_directories(run_directory());
    std::ofstream(fs::path(run_directory()) / "config.toml") << to_toml(config);
    if (step == 0) return;
    CheckpointWriter writer(fs::path(run_directory()) / "checkpoints", 1);
    Snapshot snapshot;
    snapshot.step = step;
    snapshot.model_config = to_hugging_face_config(config.model, "float32");
    snapshot.run_config = to_toml(config);
    TrainingState state;
    state.configuration = now ? *now : configuration_of(config);
    snapshot.training_state = to_json(state);
    snapshot.weights.push_back(make_host_tensor("w", DType::f32, {1}));
    snapshot.optimizer.push_back(make_host_tensor("exp_avg.w", DType::f32, {1}));
    writer.write(snapshot);
    writer.finish();
  }

  TemporaryFolder folder_;
};

TEST_F(PlanRun, NamesTheRunAfterItsConfiguration) {
  const RunPlan plan = plan_run({.config_path = config_path(), .overrides = {}, .run_directory = "", .resume = false});
  EXPECT_EQ(plan.directory.parent_path(), "runs");
  EXPECT_THAT(plan.directory.filename().string(), ::testing::MatchesRegex("tiny-[0-9]+-[0-9]+"));
  EXPECT_FALSE(plan.resume);
}

TEST_F(PlanRun, RefusesADirectoryThatHoldsSomething) {
  begin_run(0);
  EXPECT_THAT([&] { plan_run({config_path(), {}, run_directory(), false}); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("not empty"), HasSubstr("--resume"), HasSubstr("--run-dir"))));
}

TEST_F(PlanRun, RefusesToResumeWhereThereIsNoRun) {
  EXPECT_THAT([&] { plan_run({"", {}, run_directory(), true}); },
              ThrowsMessage<UserError>(HasSubstr("nothing to resume")));
  fs::create_directories(run_directory());
  std::ofstream(fs::path(run_directory()) / "letter.txt") << "not a run";
  EXPECT_THAT([&] { plan_run({config_path(), {}, run_directory(), true}); },
              ThrowsMessage<UserError>(HasSubstr("nothing to resume")));
  EXPECT_THAT([&] { plan_run({config_path(), {}, "", true}); }, ThrowsMessage<UserError>(HasSubstr("--run-dir")));
  EXPECT_THAT([&] { plan_run({"", {}, "", false}); }, ThrowsMessage<UserError>(HasSubstr("CONFIG.toml")));
}

TEST_F(PlanRun, ResumesFromTheNewestCheckpointWithTheRunsOwnConfiguration) {
  begin_run(7);
  const RunPlan plan = plan_run({"", {"train.max_steps=50"}, run_directory(), true});
  ASSERT_TRUE(plan.checkpoint.has_value());
  EXPECT_EQ(plan.checkpoint->step(), 7);
  EXPECT_EQ(plan.config, config_with({"train.max_steps=50"}));
  EXPECT_THAT(plan.changes, ElementsAre(HasSubstr("train.max_steps: 10 -> 50")));
}

TEST_F(PlanRun, AResumedRunKeepsWhetherDocumentsStayApart) {
  const RunConfig old = from_before_the_mask();
  const RunConfig apart = config_with({"data.mask_across_documents=true", "data.document_length=12.5"});
  std::ofstream(config_path()) << to_toml(old);
  for (const int64_t step : {0, 7}) {
    for (const std::string& path : {std::string(), config_path()}) {
      for (const RunConfig& then : {old, apart}) {
        fs::remove_all(run_directory());
        begin_run(step, then);
        const RunPlan plan = plan_run({path, {}, run_directory(), true});
        EXPECT_EQ(plan.config.data.mask_across_documents, then.data.masks_across_documents()) << step << path;
        EXPECT_THAT(plan.changes, IsEmpty());
      }
    }
  }
  EXPECT_EQ(plan_run({config_path(), {}, run_directory() + "-new", false}).config.data.mask_across_documents,
            std::nullopt)
      << "the data of a new run decide";
}

// optimizer.lr is for the run's first batch, even if train.global_batch changes.
TEST_F(PlanRun, AnotherBatchIsScaledFromTheOneThatTheRateIsFor) {
  const std::string batch = "train.global_batch=64";  // it was 32
  begin_run(7);
  const RunPlan plan = plan_run({"", {batch}, run_directory(), true});
  EXPECT_EQ(plan.config, config_with({batch, "optimizer.reference_batch=32", "train.step_batch=32"}));
  EXPECT_THAT(plan.changes, ElementsAre("train.global_batch: 32 -> 64"));
  EXPECT_DOUBLE_EQ(initial_rate_factor(plan.config, plan.start.global_batch), std::sqrt(2));

  // Repeats the command after a checkpoint with that batch; then changes the batch back.
  begin_run(8, plan.config);
  EXPECT_EQ(plan_run({"", {}, run_directory(), true}).config, plan.config);
  const RunPlan again = plan_run({config_path(), {batch}, run_directory(), true});
  EXPECT_EQ(again.config, plan.config);
  EXPECT_THAT(again.changes, IsEmpty());
  const RunPlan back = plan_run({"", {"train.global_batch=32"}, run_directory(), true});
  EXPECT_EQ(reference_batch_of(back.config), 32);
  EXPECT_THAT(back.changes, ElementsAre("train.global_batch: 64 -> 32"));
  EXPECT_THAT([&] { plan_run({"", {"optimizer.reference_batch=64"}, run_directory(), true}); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("optimizer.reference_batch was 32"), HasSubstr("it is 64"))));
}

// The cause of the move does not matter: in a run without a policy it was a user's command.
TEST_F(PlanRun, ARunGoesOnInTheConfigurationOfItsCheckpointUnlessAnotherIsAskedFor) {
  Configuration moved = configuration_of(config_with({}));
  moved.global_batch = 16;
  moved.micro_batch = 4;
  begin_run(7, config_with({}), moved);
  const RunPlan plan = plan_run({"", {"train.max_steps=50"}, run_directory(), true});
  EXPECT_EQ(plan.start, moved);
  EXPECT_EQ(plan.config.train.global_batch, 32);
  EXPECT_THAT(plan.changes, ElementsAre(HasSubstr("train.max_steps")));

  const RunPlan back = plan_run({"", {"train.global_batch=32"}, run_directory(), true});
  EXPECT_EQ(back.start, configuration_of(config_with({})));
  EXPECT_THAT(back.changes, ElementsAre("B=16,b=4 -> B=32,b=8"));

  std::ofstream(config_path(), std::ios::app) << "recompute = \"full\"\n";  // in [train], the last section
  const RunPlan by_file = plan_run({config_path(), {}, run_directory(), true});
  EXPECT_EQ(by_file.start, configuration_of(config_with({"train.recompute=full"})));

  begin_run(8, config_with({"parallel.data_parallel=2"}), moved);
  const RunPlan on_others = plan_run({"", {}, run_directory(), true});
  EXPECT_EQ(on_others.start, configuration_of(config_with({"parallel.data_parallel=2"})));
}

TEST_F(PlanRun, ARunInAnotherBatchEndsAfterAsManyTokens) {
  begin_run(7);
  for (int time = 0; time < 2; ++time) {  // as a scheduler repeats the command
    const RunPlan plan = plan_run({"", {"train.global_batch=64"}, run_directory(), true});
    EXPECT_EQ(limit_in_tokens(plan.config.train), limit_in_tokens(config_with({}).train));
    EXPECT_THAT(plan.changes, ElementsAre("train.global_batch: 32 -> 64"));
    EXPECT_THAT(plan.effects, ElementsAre(HasSubstr("the learning rate at this point is")));
  }
  const RunPlan longer = plan_run({"", {"train.max_steps=20"}, run_directory(), true});
  EXPECT_THAT(longer.effects, Contains(HasSubstr("the run now ends after 10240 tokens (was after 5120")));
}

TEST_F(PlanRun, ARunWithoutACheckpointBeginsAgain) {
  const RunPlan never_begun = plan_run({config_path(), {}, run_directory(), true});
  EXPECT_FALSE(never_begun.resume);
  begin_run(0);
  const RunPlan plan = plan_run({"", {}, run_directory(), true});
  EXPECT_TRUE(plan.resume);
  EXPECT_FALSE(plan.checkpoint.has_value());
}

TEST_F(PlanRun, ARunWhoseCheckpointsAreDamagedNeverBeginsAgain) {
  begin_run(8);
  begin_run(7);  // later checkpoints stay
  const fs::path checkpoints = fs::path(run_directory()) / "checkpoints";
  fs::resize_file(checkpoints / "step-00000008" / "manifest.json", 100);
  const RunPlan plan = plan_run({"", {}, run_directory(), true});
  ASSERT_TRUE(plan.checkpoint.has_value());
  EXPECT_EQ(plan.checkpoint->step(), 7);
  EXPECT_THAT(plan.damage, ElementsAre(AllOf(HasSubstr("step-00000008"), HasSubstr("manifest.json"))));

  fs::remove(checkpoints / "step-00000007" / "manifest.json");
  EXPECT_THAT([&] { plan_run({"", {}, run_directory(), true}); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("cannot resume"), HasSubstr("step-00000008"),
                                             HasSubstr("not trained again from its beginning"))));
}

TEST(ClaimedDirectory, IsAnotherOneForEachOfSeveralJobsAndGoesWhereNothingWasWritten) {
  const TemporaryFolder folder;
  const std::filesystem::path wanted = folder.path() / "runs" / "r";
  constexpr int jobs = 16;
  std::vector<std::unique_ptr<ClaimedDirectory>> claimed(jobs);
  std::vector<std::thread> threads;
  for (int job = 0; job < jobs; ++job) {
    threads.emplace_back([&, job] { claimed[job] = std::make_unique<ClaimedDirectory>(wanted); });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> names;
  for (const auto& one : claimed) names.insert(one->path().filename().string());
  EXPECT_EQ(names.size(), static_cast<size_t>(jobs));
  EXPECT_TRUE(names.contains("r"));
  EXPECT_TRUE(names.contains("r-16"));
  write_file_durably(claimed[0]->path() / "config.toml", "");
  const std::filesystem::path used = claimed[0]->path();
  claimed.clear();
  EXPECT_TRUE(std::filesystem::exists(used / "config.toml"));
  for (const std::string& name : names) {
    EXPECT_EQ(std::filesystem::exists(wanted.parent_path() / name), name == used.filename()) << name;
  }
}

}  // namespace
}  // namespace copus
