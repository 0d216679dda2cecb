// Checkpoints of a run, which its ranks write together: each its files, at the same time, and rank 0 what makes them a
// checkpoint. All ranks call these functions alike, between two steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "copus/checkpoint/checkpoint_folder.h"
#include "copus/checkpoint/checkpoint_part.h"
#include "copus/comm/world.h"
#include "copus/train/trainer.h"

namespace copus {

// Checks that the ranks see the same folder where several of them are going to write into it. `directory` need not
// exist yet: the nearest folder above it that does is looked at. Throws a UserError that names a rank that does not see
// rank 0's.
void check_folder_is_shared(const std::filesystem::path& directory, const CheckpointPlan& plan, World& world);

class RunCheckpoints {
 public:
  // `root`: the folder of checkpoints, as this rank sees it; `folder`: the same on rank 0, null elsewhere.
  // `wait_seconds`: for how long a disk may make nothing durable while all wait for it. `gives_up`: asked on rank 0
  // meanwhile, whether nobody is to wait any longer; empty: never. `waits`: training waits until the disk has
  // everything, so that the number of messages does not depend on the disk. Refers to `folder` and `world` for its
  // whole life. The end of it does not wait for a disk.
  RunCheckpoints(std::filesystem::path root, CheckpointFolder* folder, World& world, double wait_seconds,
                 std::function<bool()> gives_up = {}, bool waits = false, const CheckpointLimits& limits = {});

  // Writes a checkpoint of the trainer's state. Returns when the system has taken all of it; the disk may not have yet.
  // First finishes the one before. Returns false, and writes nothing, where that was given up, or somebody has deleted
  // the folder: a checkpoint without the rest of the run directory could not be found again.
  bool write(Trainer& trainer, const std::string& run_config);

  // Has rank 0 complete the checkpoint in the background, if by now all ranks' files are on the disk. Throws UserError
  // where one rank's disk has refused; then nothing is left of the checkpoint, and older ones are as they were. Where
  // the folder has been deleted since the checkpoint was begun, that is no error, and there is no such checkpoint.
  void look();

  // Waits until the checkpoint is complete. Returns false where it was given up. Throws as look() does, and UserError
  // that names a rank whose disk has made nothing durable for `wait_seconds`.
  bool finish();

  // The longest time so far, in seconds, from the start of a checkpoint until it was on the disk.
  double longest_seconds() const { return longest_seconds_; }

 private:
  enum class DiskState : int64_t { done, works, silent, given_up };  // of several ranks the latest counts
  struct DiskWatch {
    int64_t files = 0;  // that were durable then
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  };

  void settle();
  std::string begin(int64_t step, int64_t bytes);
  DiskState state_of_disk(DiskWatch& watch) const;
  DiskState slowest_of_all(DiskState mine);
  void complain_of_silence(DiskWatch& watch);
  void forget();
  bool rank_zero_says(bool yes);

  std::filesystem::path root_;
  CheckpointFolder* folder_;
  World& world_;
  double wait_seconds_;
  std::function<bool()> gives_up_;
  bool waits_;
  CheckpointLimits limits_;
  CheckpointTexts texts_;  // of the checkpoint that is being written, on rank 0
  std::chrono::steady_clock::time_point begun_;
  double longest_seconds_ = 0;
  std::unique_ptr<CheckpointPart> part_;  // of the checkpoint that is being written; null: none is
};

}  // namespace copus
