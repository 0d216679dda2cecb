#include "copus/checkpoint/checkpoint_part.h"

#include <chrono>
#include <thread>
#include <utility>

#include "copus/base/error.h"
#include "copus/checkpoint/safetensors.h"
#include "copus/checkpoint/shards.h"

namespace copus {

CheckpointPart::CheckpointPart(std::filesystem::path folder, const CheckpointPlan& plan, int64_t rank)
    : folder_(std::move(folder)) {
  for (const CheckpointFile& file : plan.files) {
    if (file.writer != rank) continue;
    std::vector<TensorView> tensors;
    int64_t bytes = 0;
    for (const int64_t index : file.tensors) {
      const CheckpointTensor& tensor = plan.tensors[index];
      tensors.push_back({.name = tensor.name, .dtype = DType::f32, .shape = tensor.shape, .bytes = {}});
      bytes += tensor.bytes();
    }
    const bool is_model = plan.tensors[file.tensors.front()].is_weight;
    files_.push_back(
        {.name = file.name,
         .header = safetensors_header(tensors, is_model ? pytorch_metadata : std::map<std::string, std::string>()),
         .bytes = bytes});
  }
}

void CheckpointPart::write(std::span<const std::byte> bytes) {
  if (!outcome_.error.empty()) return;
  try {
    write_or_throw(bytes);
  } catch (const UserError& refusal) {
    outcome_.error = refusal.what();
    open_.clear();  // releases the disk space
  }
}

void CheckpointPart::write_or_throw(std::span<const std::byte> bytes) {
  if (left_ == 0) {
    COPUS_CHECK(open_.size() < files_.size(), "all files are complete");
    const File& file = files_[open_.size()];
    open_.push_back(std::make_unique<DurableFile>(folder_ / file.name, file.header.size() + file.bytes));
    open_.back()->write(file.header);
    left_ = file.bytes;
  }
  COPUS_CHECK(std::ssize(bytes) <= left_, files_[open_.size() - 1].name, " lacks ", left_, " bytes, not ",
              bytes.size());
  open_.back()->write(bytes);
  left_ -= std::ssize(bytes);
}

void CheckpointPart::finish() {
  COPUS_CHECK(!outcome_.error.empty() || (open_.size() == files_.size() && left_ == 0), "files lack bytes");
  if (!outcome_.error.empty() || open_.empty()) return;
  std::vector<std::string> names;
  for (const File& file : files_) names.push_back(file.name);
  // The task captures nothing of this object, which may be destroyed before the sync returns.
  std::packaged_task<Outcome()> task([names = std::move(names), files = std::move(open_), num_durable = num_durable_] {
    Outcome outcome;
    try {
      for (size_t i = 0; i < files.size(); ++i) {
        outcome.files[names[i]] = files[i]->commit();
        ++*num_durable;
      }
    } catch (const UserError& refusal) {
      outcome = {.files = {}, .error = refusal.what()};
    }
    return outcome;
  });
  open_.clear();
  under_way_ = task.get_future();
  std::thread(std::move(task)).detach();
}

bool CheckpointPart::is_done() const {
  return !under_way_.valid() || under_way_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

const CheckpointPart::Outcome& CheckpointPart::outcome() {
  if (under_way_.valid()) outcome_ = under_way_.get();
  return outcome_;
}

}  // namespace copus
