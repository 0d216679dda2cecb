#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "copus/base/error.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/checkpoint_files.h"
#include "copus/checkpoint/directory_lock.h"
#include "copus/checkpoint/manifest.h"
#include "copus/checkpoint/shards.h"

namespace copus {
namespace {

void delete_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  if (error) throw UserError(concat("cannot delete ", directory.string(), ": ", error.message()));
}

// Deletes leftovers of checkpoints alone: other files in the folder are not ours.
void delete_leftovers(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const bool is_partial = entry.path().extension() == partial_suffix;
    if (is_partial && parse_checkpoint_name(entry.path().stem().string())) leftovers.push_back(entry.path());
  }
  std::ranges::for_each(leftovers, delete_directory);
}

std::vector<TensorView> views_of(const std::vector<HostTensor>& tensors) {
  std::vector<TensorView> views;
  for (const HostTensor& tensor : tensors) views.push_back(tensor.view());
  return views;
}

uint64_t total_bytes(const Snapshot& snapshot) {
  uint64_t bytes = snapshot.model_config.size() + snapshot.run_config.size() + snapshot.training_state.size();
  for (const auto* tensors : {&snapshot.weights, &snapshot.optimizer}) {
    for (const HostTensor& tensor : *tensors) bytes += tensor.view().bytes.size();
  }
  return bytes;
}

void check_snapshot(const Snapshot& snapshot) {
  COPUS_CHECK(snapshot.step >= 0, snapshot.step);
  std::set<std::string_view> names;
  for (const auto* tensors : {&snapshot.weights, &snapshot.optimizer}) {
    for (const HostTensor& tensor : *tensors) {
      COPUS_CHECK(tensor.dtype == DType::f32, tensor.name, " is ", torch_name(tensor.dtype));
      COPUS_CHECK(names.insert(tensor.name).second, "two tensors are called ", tensor.name);
    }
  }
}

std::map<std::string, FileDigest> write_optimizer_files(const std::filesystem::path& directory,
                                                        const std::vector<TensorView>& tensors, int64_t shard_bytes) {
  std::vector<uint64_t> sizes;
  for (const TensorView& tensor : tensors) sizes.push_back(tensor.bytes.size());
  std::map<std::string, FileDigest> digests;
  for (const Shard& shard : plan_shards(sizes, shard_bytes, optimizer_stem)) {
    digests[shard.file_name] =
        write_safetensors(directory / shard.file_name, std::span(tensors).subspan(shard.first, shard.count), {});
  }
  return digests;
}

void write_checkpoint_files(const std::filesystem::path& directory, const Snapshot& snapshot, int64_t shard_bytes) {
  Manifest manifest{snapshot.step, {}};
  manifest.files.merge(write_model_files(directory, views_of(snapshot.weights), DType::f32, shard_bytes));
  manifest.files.merge(write_optimizer_files(directory, views_of(snapshot.optimizer), shard_bytes));
  const auto write_text = [&](const char* name, const std::string& text) {
    manifest.files[name] = write_file_durably(directory / name, text);
  };
  write_text(model_config_file_name, snapshot.model_config);
  write_text(run_config_file_name, snapshot.run_config);
  write_text(training_state_file_name, snapshot.training_state);
  write_file_durably(directory / manifest_file_name, to_json(manifest));
}

}  // namespace

TensorView HostTensor::view() const {
  return {name, dtype, shape, {bytes.get(), static_cast<size_t>(count_elements(shape) * size_of(dtype))}};
}

HostTensor make_host_tensor(std::string name, DType dtype, std::vector<int64_t> shape) {
  const auto bytes = static_cast<size_t>(count_elements(shape) * size_of(dtype));
  return {std::move(name), dtype, std::move(shape), std::make_shared_for_overwrite<std::byte[]>(bytes)};
}

CheckpointWriter::CheckpointWriter(std::filesystem::path root, int64_t keep_last, int64_t shard_bytes)
    : root_(std::move(root)), keep_last_(keep_last), shard_bytes_(shard_bytes) {
  COPUS_CHECK(keep_last >= 1 && shard_bytes >= 1);
  create_directories_durably(root_);
  lock_ = std::make_unique<DirectoryLock>(root_);
  delete_leftovers(root_);
}

CheckpointWriter::~CheckpointWriter() {
  if (pending_.valid()) pending_.wait();
}

void CheckpointWriter::write(Snapshot snapshot) {
  finish();
  check_snapshot(snapshot);
  pending_ = std::async(std::launch::async, [this, snapshot = std::move(snapshot)]() mutable {
    // Takes the snapshot out of the lambda, which lives as long as the future; the snapshot's memory must not.
    const Snapshot owned = std::move(snapshot);
    write_now(owned);
  });
}

void CheckpointWriter::finish() {
  if (pending_.valid()) pending_.get();
}

std::optional<std::filesystem::path> CheckpointWriter::last_written() const {
  const std::lock_guard guard(mutex_);
  return last_written_;
}

void CheckpointWriter::write_now(const Snapshot& snapshot) {
  const std::filesystem::path directory = root_ / checkpoint_name(snapshot.step);
  write_directory_durably(directory, total_bytes(snapshot), [&](const std::filesystem::path& partial) {
    write_checkpoint_files(partial, snapshot, shard_bytes_);
  });
  {
    const std::lock_guard guard(mutex_);
    last_written_ = directory;
  }
  delete_older_than(snapshot.step);
}

void CheckpointWriter::delete_older_than(int64_t step) const {
  std::vector<int64_t> older;
  for (const auto& entry : std::filesystem::directory_iterator(root_)) {
    const auto found = parse_checkpoint_name(entry.path().filename().string());
    if (found && *found < step && has_manifest(entry.path())) older.push_back(*found);
  }
  std::ranges::sort(older, std::greater());
  for (size_t i = static_cast<size_t>(keep_last_ - 1); i < older.size(); ++i) {
    const std::filesystem::path directory = root_ / checkpoint_name(older[i]);
    const std::filesystem::path doomed = partial_path(directory);
    delete_directory(doomed);  // replace_durably would exchange a leftover, which would then get the final name
    replace_durably(directory, doomed);
    delete_directory(doomed);
  }
}

}  // namespace copus
