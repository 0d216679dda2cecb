// For tests: the whole state of a run in host memory, and a writer that stores it in a checkpoint as several ranks of
// one process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/checkpoint_folder.h"
#include "copus/checkpoint/checkpoint_part.h"
#include "copus/checkpoint/checkpoint_plan.h"
#include "copus/checkpoint/safetensors.h"

namespace copus {

// A tensor in host memory, row-major. Copies share the bytes.
struct HostTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::shared_ptr<std::byte[]> bytes;  // count_elements(shape) * size_of(dtype)

  // A view that refers to `bytes`.
  TensorView view() const {
    return {name, dtype, shape, {bytes.get(), static_cast<size_t>(count_elements(shape) * size_of(dtype))}};
  }
};

// Makes a tensor with uninitialised bytes, which the caller fills.
inline HostTensor make_host_tensor(std::string name, DType dtype, std::vector<int64_t> shape) {
  const auto bytes = static_cast<size_t>(count_elements(shape) * size_of(dtype));
  return {std::move(name), dtype, std::move(shape), std::make_shared_for_overwrite<std::byte[]>(bytes)};
}

// The state of a run at one step.
struct Snapshot {
  int64_t step = 0;
  std::string model_config;
  std::string run_config;
  std::string training_state;
  std::vector<HostTensor> weights;    // fp32 master weights, Hugging Face's names
  std::vector<HostTensor> optimizer;  // exp_avg.<parameter> and exp_avg_sq.<parameter>, fp32
};

// Plans the checkpoint of a snapshot.
inline CheckpointPlan plan_of(const Snapshot& snapshot, int64_t num_ranks, const CheckpointLimits& limits) {
  std::vector<CheckpointTensor> tensors;
  for (const HostTensor& tensor : snapshot.weights) tensors.push_back({.name = tensor.name, .shape = tensor.shape});
  for (const HostTensor& tensor : snapshot.optimizer) {
    tensors.push_back({.name = tensor.name, .shape = tensor.shape, .is_weight = false});
  }
  return plan_checkpoint(std::move(tensors), num_ranks, limits);
}

// Writes the files that the plan assigns to a rank.
inline void write_part(CheckpointPart& part, const CheckpointPlan& plan, int64_t rank, const Snapshot& snapshot) {
  const auto num_weights = std::ssize(snapshot.weights);
  for (const int64_t index : plan.tensors_of(rank)) {
    part.write((index < num_weights ? snapshot.weights[index] : snapshot.optimizer[index - num_weights]).view().bytes);
  }
  part.finish();
}

inline CheckpointTexts texts_of(const Snapshot& snapshot, const CheckpointPlan& plan) {
  return {.model_config = snapshot.model_config,
          .run_config = snapshot.run_config,
          .training_state = snapshot.training_state,
          .model_index = plan.model_index()};
}

// Writes snapshots into a folder of checkpoints. Ranks write their parts one after the other.
class CheckpointWriter {
 public:
  CheckpointWriter(std::filesystem::path root, int64_t keep_last, const CheckpointLimits& limits = {},
                   int64_t num_ranks = 1)
      : root_(std::move(root)), folder_(root_, keep_last), limits_(limits), num_ranks_(num_ranks) {}

  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  // Waits for the last checkpoint, so that another writer can open the folder.
  ~CheckpointWriter() {
    while (!folder_.is_idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  void write(const Snapshot& snapshot, bool deletes_older = true) {
    const CheckpointPlan plan = plan_of(snapshot, num_ranks_, limits_);
    const std::filesystem::path partial = folder_.begin(snapshot.step, plan.bytes(), deletes_older);
    std::map<std::string, FileDigest> files;
    for (int64_t rank = 0; rank < num_ranks_; ++rank) {
      CheckpointPart part(partial, plan, rank);
      write_part(part, plan, rank, snapshot);
      if (!part.outcome().error.empty()) folder_.abandon(part.outcome().error);
      for (const auto& file : part.outcome().files) files.insert(file);
    }
    folder_.commit(texts_of(snapshot, plan), std::move(files));
  }

  void finish() { folder_.finish(); }
  const std::string& deletion_failure() const { return folder_.deletion_failure(); }
  // Call after finish().
  std::optional<std::filesystem::path> last_written() const { return latest_checkpoint(root_); }

 private:
  std::filesystem::path root_;
  CheckpointFolder folder_;
  CheckpointLimits limits_;
  int64_t num_ranks_;
};

}  // namespace copus
