// A run's `checkpoints` folder, on the rank that keeps it: begins checkpoints, makes complete what all ranks have
// written, and deletes old ones. checkpoint.h says what the folder holds and why nothing half-written is ever read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "copus/base/durable_file.h"

namespace copus {

class DirectoryLock;

// What a checkpoint holds beside its tensors.
struct CheckpointTexts {
  std::string model_config;    // config.json
  std::string run_config;      // config.toml
  std::string training_state;  // training_state.json; only the caller knows its content
  std::string model_index;     // CheckpointPlan::model_index; empty: there is no such file
};

class CheckpointFolder {
 public:
  // Creates the folder `root` where there is none, locks it and deletes leftovers of dead writers. `keep_last` >= 1
  // checkpoints stay. Throws UserError when the folder cannot be made, or another process writes into it and has not
  // ended after `wait_seconds`.
  CheckpointFolder(std::filesystem::path root, int64_t keep_last, double wait_seconds = 0);

  // Deletes what was begun and not committed. Does not wait for the commit in progress, so call finish() first: it goes
  // on while the process lives, keeps the folder locked until then, and its error is lost.
  ~CheckpointFolder();

  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  // Tells whether the folder is still there: somebody may have deleted or moved it, or put another one in its place.
  // Until put_back() nothing is written, deleted or made complete any more, and nothing that fails is an error.
  bool is_in_place() const;
  // Makes the folder again, and locks it, where it is not; what was begun is lost. Throws UserError as the constructor.
  void put_back();

  // Begins the checkpoint of a step, which will have `bytes` of tensors, and returns the new, empty folder for its
  // files: its name is new, so late writes to an abandoned checkpoint cannot collide with it. First waits for the
  // commit in progress and throws its error.
  std::filesystem::path begin(int64_t step, int64_t bytes);

  // Makes what was begun a complete checkpoint, in the background: `files` are all files of tensors, durable. It
  // replaces a checkpoint of the same step.
  void commit(CheckpointTexts texts, std::map<std::string, FileDigest> files);

  // Tells whether what was begun can still be committed.
  bool has_begun() const { return begun_ != nullptr && is_in_place(); }

  // Gives up what was begun and not committed without touching the disk, which may hang: the next begin() deletes it.
  // Returns whether there was anything.
  bool forget() { return std::exchange(begun_, nullptr) != nullptr; }
  // Deletes what was begun and not committed.
  void drop();
  // The same, and throws a UserError with the cause.
  [[noreturn]] void abandon(const std::string& cause);

  // Tells whether no commit is in progress.
  bool is_idle() const;
  // Waits for the commit in progress and throws its error. A failed one leaves nothing behind and older checkpoints as
  // they were.
  void finish();

  // Throws UserError when the folder holds a checkpoint of a later step than `step`, or only damaged ones: a run that
  // goes on from `step` would write over the work of another.
  void check_none_is_later_than(int64_t step) const;

 private:
  // A checkpoint that is being written, with all that its commit needs, which may outlive the folder's object.
  struct Writing;

  std::filesystem::path root_;
  int64_t keep_last_;
  std::shared_ptr<const DirectoryLock> lock_;
  std::shared_ptr<const Writing> begun_;  // and not committed; null: nothing is
  std::future<void> pending_;
};

}  // namespace copus
