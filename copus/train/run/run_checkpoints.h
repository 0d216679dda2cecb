// Checkpoints of a run. All ranks write their files in parallel, and rank 0 completes the checkpoint. All ranks call
// these functions in the same order, between two steps.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "copus/checkpoint/checkpoint_folder.h"
#include "copus/checkpoint/checkpoint_part.h"
#include "copus/comm/world.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

// Checks that ranks see the same folder, if several of them will write to it: `directory`, or its nearest existing
// parent. Throws UserError that names a rank which does not see rank 0's folder.
void check_folder_is_shared(const std::filesystem::path& directory, const CheckpointPlan& plan, World& world);

class RunCheckpoints {
 public:
  // `root`: the folder of checkpoints as this rank sees it. `folder`: on rank 0, the object that manages this folder;
  // null on other ranks. `wait_seconds`: how long ranks wait for a disk that completes no file. `gives_up` is called on
  // rank 0 during a wait and returns whether to stop waiting; if empty, waits are never stopped. With `waits`, training
  // waits until all files are on disk, so that the number of messages does not depend on the disk. `folder` and `world`
  // must outlive this object. The destructor does not wait for a disk.
  RunCheckpoints(std::filesystem::path root, CheckpointFolder* folder, World& world, double wait_seconds,
                 std::function<bool()> gives_up = {}, bool waits = false, const CheckpointLimits& limits = {});

  // Finishes the previous checkpoint, then writes a checkpoint of the trainer's state. Returns when the operating
  // system has all data, which may not be on disk yet. Writes nothing and returns false if the previous checkpoint was
  // given up. Does the same if the folder has been deleted, because nobody could find a checkpoint without the rest of
  // the run directory. `deletes_older`: whether the complete checkpoint replaces older ones.
  bool write(Trainer& trainer, const std::string& run_config, bool deletes_older = true);

  // Lets rank 0 complete the checkpoint in the background, if all ranks' files are on disk by now. Throws UserError if
  // a rank's disk failed; then nothing of the checkpoint remains, and older checkpoints are unchanged. If the folder
  // has been deleted, drops the checkpoint without an error.
  void poll();

  // Waits until the checkpoint is complete. Returns false if it was given up. Throws as poll() does, and UserError that
  // names a rank whose disk has completed no file for `wait_seconds`.
  bool finish();

  // Returns the longest time so far, in seconds, from the start of a checkpoint until it was on disk; 0: none yet.
  double longest_seconds() const { return longest_seconds_; }
  // Counts an earlier checkpoint, of another object.
  void count_earlier(double seconds) { longest_seconds_ = std::max(longest_seconds_, seconds); }

 private:
  enum class DiskState : int64_t { done, works, silent, given_up };  // all ranks take the highest value of any rank
  struct DiskWatch {
    int64_t files = 0;  // durable at `since`
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  };

  void settle();
  std::string begin(int64_t step, int64_t bytes, bool deletes_older);
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
  CheckpointTexts texts_;  // of the current checkpoint; on rank 0
  std::chrono::steady_clock::time_point begun_;
  double longest_seconds_ = 0;
  std::unique_ptr<CheckpointPart> part_;  // of the current checkpoint; null: none
};

}  // namespace copus
