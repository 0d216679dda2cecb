// Writes one rank's part of a checkpoint that all ranks write together: the files that the plan assigns to the rank.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "copus/base/files/durable_file.h"
#include "copus/checkpoint/checkpoint_plan.h"

namespace copus {

// Writes the checkpoint files of one rank. Bytes are hashed and written as they arrive. They stay in the system's page
// cache until a separate thread syncs them to the disk. If the disk fails, no function throws, because other ranks keep
// sending their bytes to this rank. outcome() returns the error.
class CheckpointPart {
 public:
  struct Outcome {
    std::map<std::string, FileDigest> files;
    std::string error;  // empty: all files are durable
  };

  // Takes over the files that `plan` assigns to `rank`, in the folder of the unfinished checkpoint. A file is created
  // when its first bytes arrive.
  CheckpointPart(std::filesystem::path folder, const CheckpointPlan& plan, int64_t rank);
  // Does not wait for the disk: a thread continues to make files durable.
  ~CheckpointPart() = default;
  CheckpointPart(const CheckpointPart&) = delete;
  CheckpointPart& operator=(const CheckpointPart&) = delete;

  // Takes the next bytes of the rank's tensors, in the order of CheckpointPlan::tensors_of. One call never spans two
  // tensors.
  void write(std::span<const std::byte> bytes);

  // Starts to sync the files, once all bytes have been written.
  void finish();

  // Only after finish(). is_done(): whether the outcome is available. outcome(): waits for it and returns it.
  bool is_done() const;
  // The number of files that are durable so far.
  int64_t num_durable() const { return *num_durable_; }
  const Outcome& outcome();

 private:
  struct File {
    std::string name;
    std::string header;
    int64_t bytes;  // of its tensors
  };

  void write_or_throw(std::span<const std::byte> bytes);

  std::filesystem::path folder_;
  std::vector<File> files_;
  std::vector<std::unique_ptr<DurableFile>> open_;  // the first of files_; the last one is being written
  int64_t left_ = 0;                                // bytes that the last open file still needs
  Outcome outcome_;
  std::shared_ptr<std::atomic<int64_t>> num_durable_ = std::make_shared<std::atomic<int64_t>>(0);
  std::future<Outcome> under_way_;
};

}  // namespace copus
