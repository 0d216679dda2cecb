#include "copus/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "copus/base/error.h"
#include "copus/checkpoint/checkpoint_files.h"
#include "copus/checkpoint/shards.h"

namespace copus {
namespace {

const TensorView& find_tensor(const std::map<std::string, TensorView, std::less<>>& tensors, std::string_view name,
                              const std::filesystem::path& directory) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) {
    throw UserError(
        concat("the checkpoint ", directory.string(), " has no tensor ", name, "; was it written for another model?"));
  }
  return found->second;
}

// The folders under `root` that have a checkpoint's name, newest first.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& root) {
  std::vector<int64_t> steps;
  if (std::filesystem::is_directory(root)) {
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      if (const auto step = parse_checkpoint_name(entry.path().filename().string())) steps.push_back(*step);
    }
  }
  std::ranges::sort(steps, std::greater());
  std::vector<std::filesystem::path> directories;
  for (const int64_t step : steps) directories.push_back(root / checkpoint_name(step));
  return directories;
}

// The newest folder, and the inode of its manifest.
std::pair<std::filesystem::path, ino_t> newest_of(const std::filesystem::path& root) {
  const auto directories = list_checkpoints(root);
  if (directories.empty()) return {};
  struct stat status{};
  const bool is_there = ::stat((directories.front() / manifest_file_name).c_str(), &status) == 0;
  return {directories.front(), is_there ? status.st_ino : 0};
}

}  // namespace

std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& root) {
  const auto directories = list_checkpoints(root);
  if (directories.empty()) return std::nullopt;
  read_named_manifest(directories.front());
  return directories.front();
}

Checkpoint open_to_resume(const std::filesystem::path& directory) {
  read_named_manifest(directory);
  return Checkpoint(directory, Checkpoint::Check::texts);
}

UsableCheckpoint open_newest_usable(const std::filesystem::path& root) {
  UsableCheckpoint result;
  for (const std::filesystem::path& directory : list_checkpoints(root)) {
    try {
      result.checkpoint = open_to_resume(directory);
      break;
    } catch (const CheckpointDamage& damage) {
      result.damage.push_back(damage.reason());
    }
  }
  return result;
}

std::optional<Checkpoint> open_latest_checkpoint(const std::filesystem::path& root) {
  constexpr int most_attempts = 20;
  for (int attempt = 1;; ++attempt) {
    const auto newest = newest_of(root);
    try {
      const auto directory = latest_checkpoint(root);
      return directory ? std::optional<Checkpoint>(std::in_place, *directory) : std::nullopt;
    } catch (const UserError&) {
      if (attempt == most_attempts || newest_of(root) == newest) throw;
    }
  }
}

Checkpoint::Checkpoint(const std::filesystem::path& directory, Check check) : directory_(directory) {
  if (!std::filesystem::is_directory(directory)) {
    throw UserError(concat(directory.string(), " is not a folder; expected a checkpoint such as checkpoints/",
                           checkpoint_name(100)));
  }
  manifest_ = read_manifest(directory);
  std::vector<std::string> to_verify;
  for (const auto& [name, digest] : manifest_.files) {
    if (check == Check::everything || !name.ends_with(tensors_suffix)) to_verify.push_back(name);
  }
  verify_files(directory, manifest_, to_verify);
  model_config_ = read_text_file(directory / model_config_file_name);
  run_config_ = read_text_file(directory / run_config_file_name);
  training_state_ = read_text_file(directory / training_state_file_name);

  const auto keep = [this](SafetensorsFile file, std::map<std::string, TensorView, std::less<>>& tensors) {
    for (const TensorView& tensor : file.tensors()) tensors.emplace(tensor.name, tensor);
    files_.push_back(std::move(file));
  };
  try {
    for (SafetensorsFile& file : open_model_files(directory)) keep(std::move(file), weights_);
    for (const auto& [name, digest] : manifest_.files) {
      if (name.starts_with(optimizer_stem)) keep(SafetensorsFile(directory / name), optimizer_);
    }
  } catch (const InvalidSafetensors& error) {
    fail_damaged(directory, error.what());
  }
}

void Checkpoint::release_tensors() {
  weights_.clear();
  optimizer_.clear();
  files_.clear();
}

// Distributes the files over the parts: the largest first, each to the part with the fewest bytes so far.
void Checkpoint::verify_tensors(int64_t part, int64_t num_parts) const {
  std::vector<std::pair<uint64_t, std::string>> files;
  for (const auto& [name, digest] : manifest_.files) {
    if (name.ends_with(tensors_suffix)) files.emplace_back(digest.bytes, name);
  }
  std::ranges::sort(files, std::greater());
  std::vector<uint64_t> load(num_parts, 0);
  std::vector<std::string> mine;
  for (const auto& [bytes, name] : files) {
    const auto least = std::ranges::min_element(load);
    *least += bytes;
    if (least - load.begin() == part) mine.push_back(name);
  }
  verify_files(directory_, manifest_, mine);
}

const TensorView& Checkpoint::weight(std::string_view name) const { return find_tensor(weights_, name, directory_); }

const TensorView& Checkpoint::optimizer(std::string_view name) const {
  return find_tensor(optimizer_, name, directory_);
}

}  // namespace copus
