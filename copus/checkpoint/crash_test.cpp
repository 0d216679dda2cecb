// Tests that killing a writer at any moment costs at most the checkpoint that it was writing.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <random>
#include <thread>

#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/testing/snapshot.h"
#include "copus/checkpoint/testing/test_model.h"

namespace copus {
namespace {

// Three ranks, each with a handful of files per checkpoint.
constexpr int64_t num_ranks = 3;
constexpr CheckpointLimits small_files{.file_bytes = 2000, .bytes_per_writer = 1};

// Writes the checkpoint like ranks that write at the same time.
void write_together(CheckpointFolder& folder, const Snapshot& snapshot) {
  const CheckpointPlan plan = plan_of(snapshot, num_ranks, small_files);
  const std::filesystem::path partial = folder.begin(snapshot.step, plan.bytes());
  std::vector<std::unique_ptr<CheckpointPart>> parts;
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    CheckpointPart& part = *parts.emplace_back(std::make_unique<CheckpointPart>(partial, plan, rank));
    ranks.emplace_back([&, rank] { write_part(part, plan, rank, snapshot); });
  }
  std::map<std::string, FileDigest> files;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].join();
    for (const auto& file : parts[rank]->outcome().files) files.insert(file);
  }
  folder.commit(texts_of(snapshot, plan), std::move(files));
  folder.finish();
}

// Resumes from the latest checkpoint as a run would, and announces every step once its checkpoint is durable. Never
// returns.
[[noreturn]] void write_until_killed(const std::filesystem::path& root, int announce) {
  const auto latest = latest_checkpoint(root);
  int64_t step = latest ? Checkpoint(*latest).step() : 0;
  CheckpointFolder folder(root, 2);
  while (true) {
    write_together(folder, make_test_snapshot(++step));
    if (::write(announce, &step, sizeof step) != sizeof step) ::_exit(1);
  }
}

// The last step announced on a pipe without remaining writers; `otherwise` if there is none.
int64_t last_announced(int descriptor, int64_t otherwise) {
  int64_t step = 0;
  while (::read(descriptor, &step, sizeof step) == sizeof step) otherwise = step;
  return otherwise;
}

// Measures the time of one checkpoint, so that kills happen during writes however fast the disk is.
std::chrono::microseconds time_per_checkpoint(const std::filesystem::path& root) {
  const auto start = std::chrono::steady_clock::now();
  constexpr int count = 3;
  for (int i = 0; i < count; ++i) {
    CheckpointFolder folder(root, 2);
    write_together(folder, make_test_snapshot(i));
  }
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start) / count;
}

TEST(Crash, LatestCheckpointAlwaysLoadsAfterKill) {
  const TemporaryFolder folder;
  const std::filesystem::path root = folder.path() / "checkpoints";
  std::mt19937 generator(2024);
  auto unit = static_cast<uint64_t>(time_per_checkpoint(folder.path() / "calibration").count());
  int64_t durable = 0;  // the last step whose finish() returned, or that was found complete
  int leftovers = 0;
  // Repeats until there were enough cases, because the machine's speed may have changed since time_per_checkpoint().
  for (int round = 0; round < 30 || durable <= 10 || leftovers <= 5; ++round) {
    ASSERT_LT(round, 500) << durable << " checkpoints, " << leftovers << " kills in a write: the test proves nothing";
    const int64_t before = durable;
    int announce[2];
    ASSERT_EQ(::pipe(announce), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_until_killed(root, announce[1]);
    ::close(announce[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(generator() % (3 * unit)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself in round " << round;
    durable = last_announced(announce[0], durable);
    ::close(announce[0]);
    if (durable == before) unit += unit / 4;

    const auto latest = latest_checkpoint(root);
    ASSERT_TRUE(latest.has_value() || durable == 0) << round;
    if (!latest) continue;
    const Checkpoint checkpoint(*latest);
    EXPECT_GE(checkpoint.step(), durable) << round;
    EXPECT_LE(checkpoint.step(), durable + 1) << round;
    EXPECT_TRUE(is_test_checkpoint(checkpoint)) << round;
    durable = checkpoint.step();
    for (const std::string& name : list_directory(root)) leftovers += name.ends_with(".partial") ? 1 : 0;
  }
  const CheckpointFolder folder_of_the_next(root, 2);
  for (const std::string& name : list_directory(root)) EXPECT_FALSE(name.ends_with(".partial")) << name;
}

}  // namespace
}  // namespace copus
