// Manages a run's `checkpoints` folder on one rank: begins checkpoints, completes what all ranks have written, and
// deletes old ones. checkpoint.h describes the contents of the folder, and why nothing half-written is ever read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "copus/base/files/durable_file.h"

namespace copus {

class DirectoryLock;

// The contents of a checkpoint other than its tensors.
struct CheckpointTexts {
  std::string model_config;    // config.json
  std::string run_config;      // config.toml
  std::string training_state;  // training_state.json; only the caller knows its content
  std::string model_index;     // CheckpointPlan::model_index; empty: no such file
};

class CheckpointFolder {
 public:
  // Creates the folder `root` if it does not exist, locks it and deletes leftovers of dead writers. Keeps the latest
  // `keep_last` >= 1 checkpoints. Throws UserError if the folder cannot be made, or if another process still writes
  // into it after `wait_seconds`.
  CheckpointFolder(std::filesystem::path root, int64_t keep_last, double wait_seconds = 0);

  // Deletes an uncommitted checkpoint. Does not wait for a commit in progress, so call finish() first. Otherwise the
  // commit continues in the background, the folder stays locked until it ends, and its error is lost.
  ~CheckpointFolder();

  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  // Returns whether the folder still exists under its path: somebody may have deleted, moved or replaced it. While the
  // folder is not in place, no file is written or deleted, no checkpoint is completed, and failed writes are ignored.
  bool is_in_place() const;
  // Makes and locks the folder again if it is not in place. An uncommitted checkpoint is lost. Throws UserError as the
  // constructor does.
  void put_back();

  // Begins the checkpoint of a step, whose tensors take `bytes` bytes. Returns the new, empty folder for its files. The
  // name of that folder is new, so late writes to an abandoned checkpoint cannot end up in it. `deletes_older`: whether
  // the complete checkpoint replaces older ones. First waits for a commit in progress, and throws its error.
  std::filesystem::path begin(int64_t step, int64_t bytes, bool deletes_older = true);

  // Completes the checkpoint that was begun, in the background. `files` lists all files of tensors, which must be
  // durable. The new checkpoint replaces a checkpoint of the same step.
  void commit(CheckpointTexts texts, std::map<std::string, FileDigest> files);

  // Whether a checkpoint was begun and can still be committed.
  bool has_begun() const { return begun_ != nullptr && is_in_place(); }

  // Gives up an uncommitted checkpoint without touching the disk, because the disk may hang; the next begin() deletes
  // its files. Returns whether there was one.
  bool forget() { return std::exchange(begun_, nullptr) != nullptr; }
  // Deletes an uncommitted checkpoint.
  void drop();
  // Like drop(), and throws a UserError with the cause.
  [[noreturn]] void abandon(const std::string& cause);

  // Whether no commit is in progress.
  bool is_idle() const;
  // Waits for the commit in progress and throws its error. A failed commit leaves no files behind and does not change
  // older checkpoints.
  void finish();
  // Returns why the latest commit that finish() has waited for could not delete an older checkpoint; empty if it could.
  // The new checkpoint is complete anyway, and the next commit tries again.
  const std::string& deletion_failure() const { return deletion_failure_; }

  // Throws UserError if the folder holds a checkpoint of a later step than `step`, or only damaged checkpoints: a run
  // that continues from `step` would overwrite checkpoints of another run.
  void check_none_is_later_than(int64_t step) const;

 private:
  // A checkpoint that is being written, with everything that its commit needs, which may outlive this object.
  struct Writing;

  std::filesystem::path root_;
  int64_t keep_last_;
  std::shared_ptr<const DirectoryLock> lock_;
  std::shared_ptr<const Writing> begun_;  // not committed yet; null: none
  std::future<std::string> pending_;      // its deletion_failure()
  std::string deletion_failure_;
};

}  // namespace copus
