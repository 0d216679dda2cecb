// Training checkpoints: the whole state of a run at one step, independent of the layout in which the run wrote it.
//
// On disk. A run's `checkpoints` folder holds one folder per checkpoint, `step-00000100`, with
//
//   config.json                        the model, as Hugging Face describes it
//   model.safetensors                  fp32 master weights under Hugging Face's names; or several files
//   model-00001-of-0000N.safetensors   with model.safetensors.index.json, which names the file of each tensor
//   optimizer-00001-of-0000N.safetensors   the optimizer's moments: exp_avg.<parameter>, exp_avg_sq.<parameter>
//   training_state.json                step, consumed samples, averages: the other values that training needs
//   config.toml                        the resolved run configuration
//   manifest.json                      format version, step, and size and XXH3-128 checksum of every other file
//
// The folder itself is an fp32 model that transformers loads. Every tensor is unsharded and identified by its name.
// Ranks, shards and stages of a parallel layout appear nowhere, and every layout can read the checkpoints of any other.
// A tensor is never split across files.
//
// Durability. A checkpoint is written as `step-00000100.abcdef.partial`, with random letters. First all ranks write the
// files of tensors at the same time (checkpoint_part.h). When all of them are on the disk, rank 0 (checkpoint_folder.h)
// writes the other files and then the manifest, each synced to the disk. Then the folder is synced and renamed, and its
// parent synced. So a folder with its final name is complete, whenever the process or the machine dies. Older
// checkpoints are deleted only after that, and are first renamed to a `.partial` name. If one cannot be deleted, the
// run reports it and continues. A process that starts writing into a `checkpoints` folder locks it (flock on `.lock`,
// which is released when the process dies) and deletes the `.partial` leftovers of dead writers and of deletions. A
// manifest or an index contains only names of files in the same folder, never a path.
//
// Damage. A folder gets its final name only when it is complete. A folder that has a final name but no complete
// checkpoint was therefore damaged later. Copus reports such a folder and never deletes or overwrites it: a new
// checkpoint of the same step first renames it to `step-00000100.set-aside`.
//
// Reading checks the manifest, and size and checksum of every file, before any content is used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/checkpoint/manifest.h"
#include "copus/checkpoint/safetensors.h"

namespace copus {

// Returns the newest checkpoint under `root`; empty if no folder has a checkpoint's name. Throws CheckpointDamage if
// the newest folder has no readable manifest, or if the step in its manifest differs from the step in its name. Other
// damage is reported when the checkpoint is opened.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& root);

// A checkpoint that is open for reading. Views stay valid as long as it lives.
class Checkpoint {
 public:
  // What to compare with the manifest when a checkpoint is opened.
  enum class Check {
    everything,  // size and checksum of every file; this reads them all
    texts,       // without the checksums of tensors: call verify_tensors() before using them
  };

  // Throws CheckpointDamage that names what is missing or damaged, and UserError if the checkpoint cannot be used for
  // another reason, such as its format version.
  explicit Checkpoint(const std::filesystem::path& directory, Check check = Check::everything);

  // Checks the checksums of the tensor files, for ranks that read a checkpoint together. The files are divided into
  // `num_parts` parts of about equal size, and this call verifies part number `part`. Throws a UserError that names the
  // first damaged file.
  void verify_tensors(int64_t part, int64_t num_parts) const;

  // Closes the files of tensors. weights() and optimizer() are then empty, and their views invalid.
  void release_tensors();

  const std::filesystem::path& directory() const { return directory_; }
  int64_t step() const { return manifest_.step; }
  const std::string& model_config() const { return model_config_; }
  const std::string& run_config() const { return run_config_; }
  const std::string& training_state() const { return training_state_; }

  // Tensors by name.
  const std::map<std::string, TensorView, std::less<>>& weights() const { return weights_; }
  const std::map<std::string, TensorView, std::less<>>& optimizer() const { return optimizer_; }

  // The tensor with this name. Both functions throw UserError if the checkpoint has none.
  const TensorView& weight(std::string_view name) const;
  const TensorView& optimizer(std::string_view name) const;

 private:
  std::filesystem::path directory_;
  Manifest manifest_;
  std::string model_config_;
  std::string run_config_;
  std::string training_state_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorView, std::less<>> weights_;
  std::map<std::string, TensorView, std::less<>> optimizer_;
};

// Opens a checkpoint with the checks that --resume makes first: of the folder's name, the texts, and the sizes and
// headers of the files of tensors. Throws as the constructor does.
Checkpoint open_to_resume(const std::filesystem::path& directory);

// The newest checkpoint from which a run can resume, and the damage of later ones.
struct UsableCheckpoint {
  std::optional<Checkpoint> checkpoint;  // opened with Check::texts
  std::vector<std::string> damage;       // CheckpointDamage::reason() of each later folder, newest first
};

// Opens the newest undamaged checkpoint under `root`. The check for damage does not read tensors. Throws UserError if
// this checkpoint cannot be used for another reason, such as its format version.
UsableCheckpoint open_newest_usable(const std::filesystem::path& root);

// Opens and verifies the checkpoint that latest_checkpoint() finds; empty if there is none. Tries again if a running
// job deletes or replaces the checkpoint meanwhile. Throws as latest_checkpoint() and the constructor do.
std::optional<Checkpoint> open_latest_checkpoint(const std::filesystem::path& root);

}  // namespace copus
