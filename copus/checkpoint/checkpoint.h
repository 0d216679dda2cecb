// Training checkpoints: the whole state of a run at one step, independent of how the run was laid out over devices.
//
// On disk. A run's `checkpoints` folder holds one folder per checkpoint, `step-00000100`, with
//
//   config.json                        the model, as Hugging Face describes it
//   model.safetensors                  fp32 master weights under Hugging Face's names; more than one file becomes
//   model-00001-of-0000N.safetensors   this, with model.safetensors.index.json saying which tensor is where
//   optimizer-00001-of-0000N.safetensors   the optimizer's moments: exp_avg.<parameter>, exp_avg_sq.<parameter>
//   training_state.json                step, consumed samples, averages: what else the training loop needs
//   config.toml                        the resolved run configuration
//   manifest.json                      format version, step, and size and XXH3-128 checksum of every other file
//
// so the folder itself is an fp32 model that transformers loads. Every tensor is whole, global and found by its name:
// no rank, shard or stage of a parallel layout appears anywhere, and any layout can read what any other has written.
// A tensor is never cut across files.
//
// Durability. A checkpoint is written as `step-00000100.partial`: first every other file, then the manifest, each
// synced to the disk; then the folder is synced and renamed, and its parent synced. So a folder with its final name is
// complete, whenever the process or the machine dies. Older checkpoints are deleted only after that, and are first
// renamed to `.partial` too. Whoever starts writing into a `checkpoints` folder locks it (flock on `.lock`, which dies
// with its process) and deletes the `.partial` leftovers of dead writers.
//
// Reading checks the manifest, and size and checksum of every file, before anything is used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/checkpoint/safetensors.h"

namespace copus {

class DirectoryLock;

// A tensor in host memory, row-major. Copies share the bytes.
struct HostTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::shared_ptr<std::byte[]> bytes;  // count_elements(shape) * size_of(dtype)

  // A view that refers to `bytes`.
  TensorView view() const;
};

// Makes a tensor whose bytes are not initialised: the caller fills them.
HostTensor make_host_tensor(std::string name, DType dtype, std::vector<int64_t> shape);

// The state of a run at one step.
struct Snapshot {
  int64_t step = 0;
  std::string model_config;           // config.json
  std::string run_config;             // config.toml
  std::string training_state;         // training_state.json; only the caller knows its content
  std::vector<HostTensor> weights;    // fp32 master weights, Hugging Face's names
  std::vector<HostTensor> optimizer;  // exp_avg.<parameter> and exp_avg_sq.<parameter>, fp32
};

inline constexpr int64_t default_shard_bytes = int64_t{1} << 30;

// Writes a run's checkpoints in the background, one at a time.
class CheckpointWriter {
 public:
  // Creates the folder `root` where there is none, locks it and deletes leftovers of dead writers. `keep_last` >= 1
  // checkpoints stay; a file holds at most `shard_bytes` of tensors, or one tensor.
  // Throws UserError when the folder cannot be made or another process writes into it.
  CheckpointWriter(std::filesystem::path root, int64_t keep_last, int64_t shard_bytes = default_shard_bytes);

  // Waits for the write in progress; its error is lost, so call finish() first.
  ~CheckpointWriter();

  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Starts writing and returns. First waits for the previous write and throws its error, if it had one; the new
  // snapshot is then not written. A checkpoint of the same step is replaced.
  void write(Snapshot snapshot);

  // Waits for the write in progress and throws its error. A failed write leaves nothing behind and older checkpoints
  // as they were; for a full disk the UserError says how many bytes were needed and where.
  void finish();

  // The newest checkpoint that this writer has made durable.
  std::optional<std::filesystem::path> last_written() const;

 private:
  void write_now(const Snapshot& snapshot);
  void delete_older_than(int64_t step) const;

  std::filesystem::path root_;
  int64_t keep_last_;
  int64_t shard_bytes_;
  std::unique_ptr<DirectoryLock> lock_;
  mutable std::mutex mutex_;
  std::optional<std::filesystem::path> last_written_;  // guarded by mutex_
  std::future<void> pending_;
};

// Finds the newest complete checkpoint under `root`; none when there is no such folder. Folders that are half-written,
// or whose manifest is missing or unreadable, are passed over. Content is not checked here: a checkpoint that is
// damaged in its content or of another format version is returned, and reported when it is opened.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& root);

// A checkpoint that is open for reading. Views stay valid as long as it lives.
class Checkpoint {
 public:
  // Checks the manifest, and size and checksum of every file (this reads them all).
  // Throws UserError that names what is missing or damaged.
  explicit Checkpoint(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  int64_t step() const { return step_; }
  const std::string& model_config() const { return model_config_; }
  const std::string& run_config() const { return run_config_; }
  const std::string& training_state() const { return training_state_; }

  // Tensors by name.
  const std::map<std::string, TensorView, std::less<>>& weights() const { return weights_; }
  const std::map<std::string, TensorView, std::less<>>& optimizer() const { return optimizer_; }

  // The tensor of that name. Both functions throw UserError when the checkpoint has none.
  const TensorView& weight(std::string_view name) const;
  const TensorView& optimizer(std::string_view name) const;

 private:
  std::filesystem::path directory_;
  int64_t step_ = 0;
  std::string model_config_;
  std::string run_config_;
  std::string training_state_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorView, std::less<>> weights_;
  std::map<std::string, TensorView, std::less<>> optimizer_;
};

}  // namespace copus
