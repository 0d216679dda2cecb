// Tests of whole runs that observe system calls.
#include "copus/train/run/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "copus/base/files/durable_file.h"
#include "copus/base/testing/immovable_folder.h"
#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/checkpoint_files.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/train/run/run_data.h"
#include "copus/train/run/run_leader.h"
#include "copus/train/run/run_loop.h"
#include "copus/train/trainer/trainer.h"

namespace {

namespace fs = std::filesystem;

// A log when it is synced: number of lines, and whether a checkpoint of this many steps had been started.
struct Sync {
  int64_t lines = 0;
  bool has_checkpoint = false;
};
std::map<std::string, std::vector<Sync>> syncs;  // by name of the log
fs::path watched_run;

void note_sync(int descriptor) {
  std::error_code ignored;
  const fs::path path = fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor), ignored);
  if (watched_run.empty() || path.parent_path() != watched_run || path.extension() != ".jsonl") return;
  std::ifstream file(path);
  Sync sync;
  sync.lines = std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n');
  for (const auto& entry : fs::directory_iterator(watched_run / "checkpoints")) {
    if (entry.path().filename().string().starts_with(copus::checkpoint_name(sync.lines))) sync.has_checkpoint = true;
  }
  syncs[path.filename()].push_back(sync);
}

}  // namespace

// Replaces the C library's function, to record when which file is synced.
extern "C" int fdatasync(int fildes) {
  note_sync(fildes);
  return static_cast<int>(::syscall(SYS_fdatasync, fildes));
}

namespace copus {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Plans a run of one rank in `folder`, which must exist.
RunPlan plan_of_tiny_run(const fs::path& folder) {
  {
    std::ofstream corpus(folder / "corpus.txt");
    for (int i = 0; i < 200; ++i) corpus << "the sea and the sky " << i << '\n';
  }
  RunConfig config;
  config.model.vocab_size = 256;
  config.model.hidden_size = config.model.intermediate_size = 16;
  config.model.num_layers = 1;
  config.model.num_heads = config.model.num_kv_heads = 2;
  config.model.head_dim = 8;
  config.data.train = {{.path = (folder / "corpus.txt").string(), .weight = 1}};
  config.data.held_out_fraction = 0;
  config.train.sequence_length = 16;
  config.train.global_batch = 4;
  config.train.micro_batch = 2;
  config.train.max_steps = 5;
  config.execution.precision = Precision::fp32;
  config.execution.threads = 1;
  return {.program = "copus",
          .config = config,
          .start = configuration_of(config),
          .directory = fs::canonical(folder) / "run",
          .resume = false,
          .checkpoint = {},
          .damage = {},
          .logged_step = 0,
          .changes = {}};
}

RunEnd train_alone(RunPlan plan) {
  const std::unique_ptr<World> world = single_rank_world();
  return run_training(std::move(plan), 0, std::chrono::steady_clock::now(), *world, at::kCPU, 1);
}

TEST(RunTraining, TheLogsAreOnTheDiskBeforeACheckpointIsFound) {
  const TemporaryFolder folder;
  RunPlan plan = plan_of_tiny_run(folder.path());
  plan.config.checkpoint.interval = 2;
  plan.config.adapt.policy = PolicyKind::fixed;
  plan.config.cluster.description.device.matmul_flops_per_second = 1e10;
  watched_run = plan.directory;
  syncs.clear();
  EXPECT_EQ(train_alone(std::move(plan)), RunEnd::done);
  watched_run.clear();

  std::vector<int64_t> steps;
  for (const Sync& sync : syncs["run.jsonl"]) {
    steps.push_back(sync.lines);
    EXPECT_FALSE(sync.has_checkpoint) << "of step " << sync.lines;
  }
  EXPECT_THAT(steps, ElementsAre(2, 4, 5));
  EXPECT_THAT(syncs["decisions.jsonl"], SizeIs(3));
}

TEST(RunTraining, GoesOnIfAnOldCheckpointCannotBeDeletedAndSaysSoOnce) {
  const TemporaryFolder folder;
  RunPlan plan = plan_of_tiny_run(folder.path());
  plan.config.checkpoint.interval = 1;
  plan.config.checkpoint.keep_last = 1;
  const fs::path checkpoints = plan.directory / "checkpoints";
  ::testing::internal::CaptureStdout();
  {
    const ImmovableFolder protection(checkpoints / checkpoint_name(1));
    EXPECT_EQ(train_alone(std::move(plan)), RunEnd::done);
  }
  const std::string output = ::testing::internal::GetCapturedStdout();
  const size_t told = output.find("cannot rename " + (checkpoints / checkpoint_name(1)).string());
  EXPECT_NE(told, std::string::npos) << output;
  EXPECT_EQ(output.rfind("cannot rename"), told) << output;
  EXPECT_THAT(list_directory(checkpoints), ElementsAre(".lock", "step-00000001", "step-00000005"));
}

TEST(RunTraining, ACheckpointAfterSkippedStepsLeavesTheOlderOnes) {
  const TemporaryFolder folder;
  RunPlan plan = plan_of_tiny_run(folder.path());
  plan.config.checkpoint.interval = 1;
  plan.config.checkpoint.keep_last = 1;
  plan.config.optimizer.schedule = LearningRateSchedule::constant;
  plan.config.optimizer.lr = 1e30;  // no step after the first update has a finite gradient
  const fs::path checkpoints = plan.directory / "checkpoints";
  EXPECT_EQ(train_alone(std::move(plan)), RunEnd::done);
  EXPECT_THAT(list_directory(checkpoints), ElementsAre(".lock", "step-00000001", "step-00000005"));
}

// On the virtual clock, computing times show which ranks are slow even if ranks share cores.
TEST(BeginRun, TheTrainerGathersComputingTimesExactlyIfTheLeaderJudgesThem) {
  const TemporaryFolder folder;
  RunPlan plan = plan_of_tiny_run(folder.path());
  plan.config.train.max_steps = 100;
  plan.config.cluster.clock = ClockKind::virtual_time;
  const Dataset dataset = open_run_data(plan.config);
  resolve_documents(plan.config, dataset);
  const std::unique_ptr<World> world = single_rank_world();
  Trainer trainer(plan.config, dataset, at::kCPU, *world);
  RunLeader leader(plan, trainer.state());
  begin_run(plan, dataset, trainer, *world, /*have_cores=*/false, &leader);
  for (int64_t step = 0; step < straggler_window; ++step) trainer.step();
  leader.note_stragglers(trainer);
  EXPECT_THAT(trainer.take_seconds(), IsEmpty()) << "the leader has taken them";
  for (int64_t step = 0; step < straggler_window; ++step) trainer.step();
  EXPECT_EQ(std::ssize(trainer.take_seconds()), straggler_window);
}

}  // namespace
}  // namespace copus
