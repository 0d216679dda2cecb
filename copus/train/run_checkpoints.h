// Checkpoints of a run, which its ranks write together: each its files, at the same time, and rank 0 what makes them a
// checkpoint. All ranks call these functions alike, between two steps.
#pragma once

#include <filesystem>
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
  // `root`: the folder of checkpoints, as this rank sees it; `folder`: the same on rank 0, null elsewhere. `waits`:
  // training waits until the disk has everything, so that the number of messages does not depend on the disk. Refers to
  // `folder` and `world` for its whole life.
  RunCheckpoints(std::filesystem::path root, CheckpointFolder* folder, World& world, bool waits = false,
                 const CheckpointLimits& limits = {});

  // Writes a checkpoint of the trainer's state. Returns when the system has taken all of it; the disk may not have yet.
  // First finishes the one before. Returns false, and writes nothing, where somebody has deleted the folder: a
  // checkpoint without the rest of the run directory could not be found again.
  bool write(Trainer& trainer, const std::string& run_config);

  // Has rank 0 complete the checkpoint in the background, if by now all ranks' files are on the disk. Throws UserError
  // where one rank's disk has refused; then nothing is left of the checkpoint, and older ones are as they were. Where
  // the folder has been deleted since the checkpoint was begun, that is no error, and there is no such checkpoint.
  void look();

  // Waits until the checkpoint is complete. Throws as look() does.
  void finish();

 private:
  void settle();
  bool begin(int64_t step, int64_t bytes);
  bool any_rank_says(bool yes);
  bool rank_zero_says(bool yes);

  std::filesystem::path root_;
  CheckpointFolder* folder_;
  World& world_;
  bool waits_;
  CheckpointLimits limits_;
  CheckpointTexts texts_;                 // of the checkpoint that is being written, on rank 0
  std::unique_ptr<CheckpointPart> part_;  // of the checkpoint that is being written; null: none is
};

}  // namespace copus
