// One rank's part of a checkpoint that all ranks write together: the files that the plan gives it.
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

#include "copus/base/durable_file.h"
#include "copus/checkpoint/checkpoint_plan.h"

namespace copus {

// Bytes are hashed and handed to the system as they come, which keeps them in its page cache; making them durable is
// left to a thread of its own. A disk that refuses is the outcome and not an exception, since the other ranks count on
// this one to take its bytes.
class CheckpointPart {
 public:
  struct Outcome {
    std::map<std::string, FileDigest> files;
    std::string error;  // empty: all files are durable
  };

  // Takes over the files of `rank` in `plan`, in the folder of the unfinished checkpoint. They are made when their
  // first bytes come.
  CheckpointPart(std::filesystem::path folder, const CheckpointPlan& plan, int64_t rank);
  // Does not wait for the disk: files that are being made durable are left to their thread.
  ~CheckpointPart() = default;
  CheckpointPart(const CheckpointPart&) = delete;
  CheckpointPart& operator=(const CheckpointPart&) = delete;

  // Takes the next bytes of the rank's tensors, in the order of CheckpointPlan::tensors_of; never of two tensors.
  void write(std::span<const std::byte> bytes);

  // Begins to make the files durable, when all bytes have been written.
  void finish();

  // Tells whether the outcome is there; waits for it. Only after finish().
  bool is_done() const;
  // The number of files that are durable by now.
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
  int64_t left_ = 0;                                // bytes that the last open file still lacks
  Outcome outcome_;
  std::shared_ptr<std::atomic<int64_t>> num_durable_ = std::make_shared<std::atomic<int64_t>>(0);
  std::future<Outcome> under_way_;
};

}  // namespace copus
