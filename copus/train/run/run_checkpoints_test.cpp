// Tests checkpoints that several ranks write together.
#include "copus/train/run/run_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/checkpoint_files.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/checkpoint/manifest.h"
#include "copus/train/testing/take_snapshot.h"
#include "copus/train/testing/test_layouts.h"

namespace {

// While set, the disk makes no tensors durable.
std::atomic<bool> disk_is_held = false;
std::atomic<int64_t> num_waiting_for_disk = 0;

bool is_of_tensors(int descriptor) {
  std::error_code ignored;
  const std::string path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), ignored);
  return path.find(".safetensors") != std::string::npos;
}

}  // namespace

// Replaces the C library's function. In a failing test the wait ends after a minute.
extern "C" int fsync(int fildes) {
  ++num_waiting_for_disk;
  for (int i = 0; disk_is_held && is_of_tensors(fildes) && i < 6000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  --num_waiting_for_disk;
  return static_cast<int>(::syscall(SYS_fsync, fildes));
}

namespace copus {
namespace {

using namespace layouts;

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr CheckpointLimits all_ranks_write{.bytes_per_writer = 1};

class RunCheckpointsTest : public ::testing::Test {
 protected:
  RunCheckpointsTest() { write_corpus(folder_.path() / "corpus.txt"); }

  RunConfig config(const std::vector<Change>& changes) const {
    RunConfig config = small_run_of_four_layers(folder_.path() / "corpus.txt");
    config.train.max_steps = 4;
    return with_changes(config, changes);
  }

  // Runs `body` on each rank, with the RunCheckpoints of a run in this folder.
  void run(const std::vector<Change>& changes,
           const std::function<void(Trainer&, RunCheckpoints&, CheckpointFolder*, World&)>& body) const {
    train_on_every_rank(config(changes), [&](Trainer& trainer, World& world, const Dataset&) {
      std::optional<CheckpointFolder> folder;
      if (world.rank() == 0) folder.emplace(root_, 2);
      RunCheckpoints checkpoints(root_, folder ? &*folder : nullptr, world, 60, {}, false, all_ranks_write);
      body(trainer, checkpoints, folder ? &*folder : nullptr, world);
    });
  }

  std::vector<std::string> entries() const {
    std::vector<std::string> names = list_directory(root_);
    std::erase(names, ".lock");
    return names;
  }

  TemporaryFolder folder_;
  std::filesystem::path root_ = folder_.path() / "checkpoints";
};

TEST_F(RunCheckpointsTest, AllRanksWriteOneHuggingFaceFolderThatAnyLayoutReads) {
  std::vector<double> expected;
  run({ranks(2, 2, 1), zero_1}, [&](Trainer& trainer, RunCheckpoints& checkpoints, CheckpointFolder*, World& world) {
    trainer.step();
    trainer.step();
    checkpoints.write(trainer, "# its configuration\n");
    checkpoints.finish();
    const double loss = trainer.step().loss;
    if (world.rank() == 0) expected.push_back(loss);
  });
  EXPECT_THAT(entries(), ElementsAre("step-00000002"));
  const Checkpoint checkpoint(root_ / "step-00000002");
  EXPECT_EQ(checkpoint.run_config(), "# its configuration\n");
  EXPECT_EQ(open_hugging_face(root_ / "step-00000002").description(), config({}).model);

  // The manifest lists exactly the existing files.
  std::vector<std::string> in_manifest = {manifest_file_name};
  for (const auto& [name, digest] : read_manifest(checkpoint.directory()).files) in_manifest.push_back(name);
  std::ranges::sort(in_manifest);
  EXPECT_EQ(in_manifest, list_directory(checkpoint.directory()));
  EXPECT_THAT(in_manifest, AllOf(Contains("model-00004-of-00004.safetensors"), Contains("config.json"),
                                 Contains("optimizer-00004-of-00004.safetensors")));

  for (const Change& layout : {ranks(1, 1, 1), ranks(1, 1, 4), ranks(2, 1, 2)}) {
    run({layout}, [&](Trainer& trainer, RunCheckpoints&, CheckpointFolder*, World&) {
      trainer.restore(checkpoint);
      EXPECT_EQ(trainer.state().step, 2);
      EXPECT_NEAR(trainer.step().loss / expected.front(), 1, 1e-5);
    });
  }
}

TEST_F(RunCheckpointsTest, TrainingGoesOnWhileADiskWrites) {
  run({ranks(2, 1, 1)}, [&](Trainer& trainer, RunCheckpoints& checkpoints, CheckpointFolder*, World& world) {
    trainer.step();
    checkpoints.write(trainer, "");
    world.everyone().barrier();
    EXPECT_EQ(latest_checkpoint(root_), std::nullopt) << "nothing is complete before all ranks have said so";
    trainer.step();
    while (true) {
      checkpoints.poll();
      int64_t is_there = latest_checkpoint(root_) ? 1 : 0;
      world.everyone().broadcast(&is_there, 1, DataType::int64, 0);
      if (is_there == 1) break;
    }
    checkpoints.write(trainer, "");
    checkpoints.finish();
  });
  EXPECT_THAT(entries(), ElementsAre("step-00000001", "step-00000002"));
  EXPECT_NO_THROW(Checkpoint(root_ / "step-00000001"));
}

// Blocks the disk for all ranks, starting when none of them writes.
void hold_disk(World& world) {
  world.everyone().barrier();
  disk_is_held = true;
  world.everyone().barrier();
}

// Unblocks the disk, and returns when everything is written.
void release_disk(World& world) {
  world.everyone().barrier();
  disk_is_held = false;
  while (num_waiting_for_disk > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  world.everyone().barrier();
}

TEST_F(RunCheckpointsTest, NobodyWhoLeavesWaitsForTheDiskAndTheNextCheckpointIsInAFolderOfItsOwn) {
  run({ranks(2, 1, 1)}, [&](Trainer& trainer, RunCheckpoints& next, CheckpointFolder* folder, World& world) {
    trainer.step();
    hold_disk(world);
    RunCheckpoints(root_, folder, world, 60, {}, false, all_ranks_write).write(trainer, "left");
    while (num_waiting_for_disk < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    world.everyone().barrier();
    const std::vector<std::string> before = entries();
    EXPECT_EQ(before.size(), 1);
    world.everyone().barrier();
    if (folder != nullptr) folder->drop();
    next.write(trainer, "next");
    EXPECT_NE(entries(), before);
    release_disk(world);
    next.finish();
  });
  EXPECT_THAT(entries(), ElementsAre("step-00000001"));
  EXPECT_EQ(Checkpoint(root_ / "step-00000001").run_config(), "next");
}

TEST_F(RunCheckpointsTest, AllGiveItUpWhereRankZeroSaysSoAndWriteTheNextOne) {
  run({ranks(2, 1, 1)}, [&](Trainer& trainer, RunCheckpoints&, CheckpointFolder* folder, World& world) {
    trainer.step();
    hold_disk(world);
    std::atomic<int64_t> asked = 0;
    RunCheckpoints checkpoints(root_, folder, world, 60, [&] { return ++asked > 3; }, false, all_ranks_write);
    EXPECT_TRUE(checkpoints.write(trainer, "given up"));
    EXPECT_FALSE(checkpoints.write(trainer, "not begun"));
    EXPECT_EQ(asked, world.rank() == 0 ? 4 : 0);
    asked = -1'000'000;
    EXPECT_TRUE(checkpoints.write(trainer, "next"));
    release_disk(world);
    EXPECT_TRUE(checkpoints.finish());
  });
  EXPECT_EQ(Checkpoint(root_ / "step-00000001").run_config(), "next");
}

TEST_F(RunCheckpointsTest, ADiskThatHangsIsNamedWhereAllWaitForIt) {
  run({ranks(2, 1, 1)}, [&](Trainer& trainer, RunCheckpoints&, CheckpointFolder* folder, World& world) {
    trainer.step();
    hold_disk(world);
    RunCheckpoints checkpoints(root_, folder, world, 0.2, {}, false, all_ranks_write);
    checkpoints.write(trainer, "");
    // The timeout may end first on either rank.
    EXPECT_THAT(user_error([&] { checkpoints.finish(); }),
                AllOf(HasSubstr(concat("checkpoint into ", root_.string(), ": rank ")),
                      ContainsRegex("rank [01]: the disk hangs, .* for 0.2 s \\(parallel.wait_limit\\)")));
    EXPECT_EQ(latest_checkpoint(root_), std::nullopt);
    release_disk(world);
  });
  // Ranks' threads still rename durable files.
  const auto is_partial = [](const auto& entry) {
    return entry.is_regular_file() && entry.path().extension() == partial_suffix;
  };
  using Entries = std::filesystem::recursive_directory_iterator;
  while (std::any_of(Entries(root_), Entries(), is_partial)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A missing folder looks like a failing disk.
TEST_F(RunCheckpointsTest, ADiskThatRefusesOneRankLeavesNothingAndIsToldOfThatRank) {
  run({ranks(2, 1, 2)}, [&](Trainer& trainer, RunCheckpoints& checkpoints, CheckpointFolder* folder, World& world) {
    trainer.step();
    checkpoints.write(trainer, "");
    checkpoints.finish();
    trainer.step();
    const std::filesystem::path seen = world.rank() == 3 ? folder_.path() / "elsewhere" : root_;
    RunCheckpoints refused(seen, folder, world, 60, {}, false, all_ranks_write);
    refused.write(trainer, "");
    const std::string error = user_error([&] { refused.finish(); });
    EXPECT_THAT(error, AllOf(HasSubstr("rank 3: cannot create"), HasSubstr("elsewhere")));
    EXPECT_EQ(error.find("Nothing of it was kept") != std::string::npos, world.rank() == 0) << error;
    world.everyone().barrier();
    EXPECT_THAT(entries(), ElementsAre("step-00000001"));
    world.everyone().barrier();
    checkpoints.write(trainer, "");
    checkpoints.finish();
  });
  EXPECT_THAT(entries(), ElementsAre("step-00000001", "step-00000002"));
}

TEST_F(RunCheckpointsTest, AFolderThatGoesAwayWhileAllWriteIsNoErrorAndNobodysUntilItIsPutBack) {
  run({ranks(2, 1, 2)}, [&](Trainer& trainer, RunCheckpoints& checkpoints, CheckpointFolder* folder, World& world) {
    const auto on_rank_zero = [&](const std::function<void()>& action) {
      world.everyone().barrier();
      if (folder != nullptr) action();
      world.everyone().barrier();
    };
    int64_t moved = 0;
    const auto move_away = [&] { std::filesystem::rename(root_, folder_.path() / concat("moved", ++moved)); };
    trainer.step();
    EXPECT_TRUE(checkpoints.write(trainer, ""));
    on_rank_zero(move_away);
    checkpoints.finish();
    EXPECT_FALSE(checkpoints.write(trainer, ""));
    on_rank_zero([&] {
      EXPECT_FALSE(std::filesystem::exists(root_));
      folder->put_back();
    });
    EXPECT_TRUE(checkpoints.write(trainer, ""));
    on_rank_zero([&] {
      move_away();
      folder->put_back();
    });
    checkpoints.finish();
    on_rank_zero([&] { EXPECT_THAT(entries(), ElementsAre()); });
    EXPECT_TRUE(checkpoints.write(trainer, ""));
    checkpoints.finish();
  });
  EXPECT_THAT(entries(), ElementsAre("step-00000001"));
  EXPECT_NO_THROW(Checkpoint(root_ / "step-00000001"));
}

TEST_F(RunCheckpointsTest, AFolderThatIsNotSharedIsToldOfTheRank) {
  const std::filesystem::path here = folder_.path() / "here", there = folder_.path() / "there";
  std::filesystem::create_directories(here);
  std::filesystem::create_directories(there);
  run({ranks(2, 1, 2)}, [&](Trainer& trainer, RunCheckpoints&, CheckpointFolder*, World& world) {
    const CheckpointPlan plan = trainer.plan_checkpoint(all_ranks_write);
    const auto check = [&](const std::filesystem::path& mine, const CheckpointPlan& of) {
      return user_error([&] { check_folder_is_shared(mine / "runs" / "new", of, world); });
    };
    EXPECT_THAT(check(world.rank() == 2 ? there : here, plan),
                AllOf(HasSubstr("rank 2: in "), HasSubstr(there.string()), HasSubstr("all machines share")));
    EXPECT_EQ(check(here, plan), "no UserError");
    // Other ranks need not see a folder to which only rank 0 writes.
    EXPECT_EQ(check(world.rank() == 2 ? there : here, trainer.plan_checkpoint()), "no UserError");
  });
  EXPECT_THAT(list_directory(here), ElementsAre());
}

}  // namespace
}  // namespace copus
