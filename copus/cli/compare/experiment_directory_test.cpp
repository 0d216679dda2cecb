// Tests which runs of an experiment are resumed, and which new arms are refused. Runs are represented by the files that
// they leave.
#include "copus/cli/compare/experiment_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/testing/snapshot.h"
#include "copus/config/testing/experiment_base.h"
#include "copus/report/files/run_summary.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* cluster_section = R"(
[cluster]
clock = "real"
ranks_per_node = 1
within_node = { latency_microseconds = 2.0, gigabytes_per_second = 8.0 }
between_nodes = { latency_microseconds = 9.0, gigabytes_per_second = 2.0 }
teraflops_per_rank = 1.0
)";

constexpr const char* grouped = R"(
base = "run.toml"
seeds = [1, 2]
screening_seeds = [11]
targets = [2]
reference = "other"
[[arm]]
name = "other"
[[arm]]
name = "low"
group = "rates"
[[arm]]
name = "high"
group = "rates"
)";

std::string on_clock(const std::string& clock) { return concat("set = [\"cluster.clock=", clock, "\"]", grouped); }

std::string with_mask(const char* value) {
  return concat("set = [\"data.mask_across_documents=", value, "\"]", grouped);
}

ExperimentDirectory open_experiment(const TemporaryFolder& folder, const std::string& text) {
  return {folder.path(), "e.toml", text, concat(experiment_base, cluster_section)};
}

// Writes the files of a run that has started.
void begin(const ExperimentDirectory& directory, const ExperimentRun& run) {
  const std::vector<std::string> arguments = directory.prepare(run);
  std::filesystem::create_directories(directory.run_directory(run));
  write_file_durably(directory.run_directory(run) / "config.toml", read_text_file(arguments.at(1)));
}

void finish(const ExperimentDirectory& directory, const ExperimentRun& run) {
  begin(directory, run);
  write_summary(directory.run_directory(run), RunSummary());
}

void write_checkpoint(const std::filesystem::path& run_directory) {
  CheckpointWriter writer(run_directory / "checkpoints", 1);
  const HostTensor weight = make_host_tensor("weight", DType::f32, {1});
  std::fill_n(weight.bytes.get(), sizeof(float), std::byte{0});
  writer.write({.step = 3,
                .model_config = "{}",
                .run_config = "",
                .training_state = "{}",
                .weights = {weight},
                .optimizer = {}});
  writer.finish();
}

TEST(ExperimentDirectory, InterruptedRunsGoOnWhereNoTimeDependsOnIt) {
  const ExperimentRun run{"low", 1};
  for (const char* clock : {"real", "wall", "modelled", "virtual"}) {
    SCOPED_TRACE(clock);
    const TemporaryFolder folder;
    const ExperimentDirectory directory = open_experiment(folder, on_clock(clock));
    const std::string path = directory.run_directory(run);
    begin(directory, run);
    ASSERT_EQ(directory.state(run), ExperimentRunState::interrupted);
    EXPECT_THAT(directory.prepare(run), ElementsAre("train", path + ".toml", "--run-dir", path)) << "no checkpoint";

    begin(directory, run);
    write_checkpoint(path);
    if (clock != std::string("virtual")) {
      EXPECT_THAT(directory.prepare(run), ElementsAre("train", "--resume", "--run-dir", path));
    } else {
      EXPECT_THAT(directory.prepare(run), ElementsAre("train", path + ".toml", "--run-dir", path));
      EXPECT_FALSE(std::filesystem::exists(path));
    }
  }
}

TEST(ExperimentDirectory, WhatARunFoundInItsDataIsNoChange) {
  const TemporaryFolder folder;
  const ExperimentDirectory directory = open_experiment(folder, grouped);
  directory.record();
  const ExperimentRun run{"low", 1};
  finish(directory, run);
  const std::filesystem::path path = directory.run_directory(run) / "config.toml";
  RunConfig begun = parse_run_config(read_text_file(path), path.string());
  ASSERT_EQ(begun.data.mask_across_documents, std::nullopt);
  begun.data.mask_across_documents = true;
  begun.data.document_length = 12.5;
  write_file_durably(path, to_toml(begun));
  EXPECT_NO_THROW(open_experiment(folder, grouped).check_runs());
  EXPECT_THAT(user_error([&] { open_experiment(folder, with_mask("false")).check_runs(); }),
              HasSubstr("data.mask_across_documents"));
}

// Sets data.mask_across_documents in the files of a started run. An empty `mask` removes the key, as in runs from
// before this setting existed.
void set_mask(const ExperimentDirectory& directory, const ExperimentRun& run, std::optional<bool> mask) {
  const std::filesystem::path path = directory.run_directory(run) / "config.toml";
  RunConfig begun = parse_run_config(read_text_file(path), path.string());
  begun.data.mask_across_documents = mask;
  write_file_durably(path, to_toml(begun));
}

// The value of the setting in the configuration of a run that starts from its beginning.
std::optional<bool> mask_to_begin_with(const ExperimentDirectory& directory, const ExperimentRun& run) {
  const std::string path = directory.prepare(run).at(1);
  return parse_run_config(read_text_file(path), path).data.mask_across_documents;
}

TEST(ExperimentDirectory, RunsToDoTakeTheMaskOfFinishedRuns) {
  for (const std::optional<bool> mask : {std::optional<bool>(), std::optional(false), std::optional(true)}) {
    const TemporaryFolder folder;
    const ExperimentDirectory directory = open_experiment(folder, grouped);
    directory.record();
    const ExperimentRun run{"low", 1}, next{"low", 2};
    EXPECT_EQ(mask_to_begin_with(directory, run), std::nullopt) << "the data decide";
    finish(directory, run);
    set_mask(directory, run, mask);
    const bool value = mask.value_or(false);
    EXPECT_NO_THROW(directory.check_runs());
    EXPECT_EQ(mask_to_begin_with(directory, next), value);
    EXPECT_NO_THROW(open_experiment(folder, with_mask(value ? "true" : "false")).check_runs());
    const ExperimentDirectory other = open_experiment(folder, with_mask(value ? "false" : "true"));
    EXPECT_THAT(user_error([&] { other.check_runs(); }), HasSubstr("changed"));

    begin(directory, next);
    write_checkpoint(directory.run_directory(next));
    EXPECT_EQ(directory.prepare(next).at(1), "--resume");
    set_mask(directory, next, !value);
    EXPECT_EQ(mask_to_begin_with(directory, next), value) << "an interrupted run with another mask begins anew";
  }
}

TEST(ExperimentDirectory, EarlierRunsWithDifferentMasksAreRefused) {
  const TemporaryFolder folder;
  const ExperimentDirectory directory = open_experiment(folder, grouped);
  directory.record();
  const ExperimentRun old{"low", 1}, later{"other", 2};
  for (const ExperimentRun& run : {old, later}) begin(directory, run);
  set_mask(directory, old, std::nullopt);
  set_mask(directory, later, true);
  const auto expect_refused = [&] {
    EXPECT_THAT(user_error([&] { open_experiment(folder, grouped).check_runs(); }),
                AllOf(HasSubstr("e.toml: data.mask_across_documents is false in arm \"low\", seed 1"),
                      HasSubstr("true in arm \"other\", seed 2"), HasSubstr("--dir")));
  };
  expect_refused();
  for (const ExperimentRun& run : {old, later}) write_summary(directory.run_directory(run), RunSummary());
  expect_refused();
  EXPECT_THAT(user_error([&] { open_experiment(folder, with_mask("false")).check_runs(); }),
              HasSubstr("arm \"other\", seed 2 have changed"));
}

TEST(ExperimentDirectory, NoArmJoinsAGroupWhoseChosenArmIsDone) {
  const TemporaryFolder folder;
  const ExperimentDirectory directory = open_experiment(folder, grouped);
  directory.record();
  finish(directory, {"low", 11});
  finish(directory, {"high", 11});
  finish(directory, {"other", 1});
  const std::string joined = concat(grouped, "[[arm]]\nname = \"new\"\ngroup = \"rates\"\n");
  EXPECT_NO_THROW(open_experiment(folder, joined).check_runs()) << "no arm was chosen";

  finish(directory, {"high", 1});
  EXPECT_THAT(user_error([&] { open_experiment(folder, joined).check_runs(); }),
              AllOf(HasSubstr("e.toml: arm \"new\" is new in the group \"rates\""), HasSubstr("arm \"high\", seed 1"),
                    HasSubstr("--dir")));
  EXPECT_NO_THROW(open_experiment(folder, grouped).check_runs());
  EXPECT_NO_THROW(open_experiment(folder, concat(grouped, "[[arm]]\nname = \"new\"\n")).check_runs());
  const std::string new_group =
      "[[arm]]\nname = \"new\"\ngroup = \"news\"\n[[arm]]\nname = \"newer\"\ngroup = \"news\"\n";
  EXPECT_NO_THROW(open_experiment(folder, grouped + new_group).check_runs());
}

}  // namespace
}  // namespace copus
