#include "copus/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/write_error.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/checkpoint_files.h"
#include "copus/checkpoint/directory_lock.h"
#include "copus/checkpoint/manifest.h"
#include "copus/checkpoint/shards.h"

namespace copus {
namespace {

// A writer that is about to end releases the lock within moments.
constexpr std::chrono::milliseconds between_looks_at_a_lock(20);

// Deletes only leftovers of checkpoints, because other files in the folder are not ours. Deleting may fail while a rank
// is still writing into a leftover. The next call then deletes it.
void delete_leftovers(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    const bool is_partial = entry.path().extension() == partial_suffix;
    if (is_partial && parse_checkpoint_name(name.substr(0, name.find('.')))) leftovers.push_back(entry.path());
  }
  std::error_code ignored;
  for (const std::filesystem::path& leftover : leftovers) std::filesystem::remove_all(leftover, ignored);
}

// Sets aside a folder that does not hold the complete checkpoint that its name promises. The folder is renamed so that
// nothing overwrites it, because somebody may still want to repair it.
void set_aside_if_damaged(const std::filesystem::path& directory) {
  if (!std::filesystem::exists(directory)) return;
  try {
    open_to_resume(directory);
  } catch (const CheckpointDamage&) {
    std::filesystem::path aside = directory.string() + ".set-aside";
    for (int number = 2; std::filesystem::exists(aside); ++number) {
      aside = concat(directory.string(), ".set-aside-", number);
    }
    std::filesystem::rename(directory, aside);
  }
}

// Returns whether a folder holds the complete checkpoint that its name promises. Other folders are neither counted nor
// deleted as old checkpoints: a damaged checkpoint may be repaired, and a copy under another name must be kept.
bool is_whole(const std::filesystem::path& directory) {
  try {
    open_to_resume(directory);
    return true;
  } catch (const std::runtime_error&) {  // includes file system errors
    return false;
  }
}

// Checks that a file written by another rank is visible here.
void check_arrival(const std::filesystem::path& path, uint64_t bytes) {
  std::error_code error;
  const uint64_t found = std::filesystem::file_size(path, error);
  if (error) {
    throw UserError(concat(path.string(), " is missing, which another rank says it has written: ", error.message(),
                           "; all ranks have to see the same run directory"));
  }
  if (found == bytes) return;
  throw UserError(concat(path.string(), " has ", found, " bytes, and the rank that wrote it says ", bytes,
                         "; all ranks have to see the same run directory"));
}

std::shared_ptr<const DirectoryLock> lock_within(const std::filesystem::path& directory, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    try {
      return std::make_shared<const DirectoryLock>(directory);
    } catch (const UserError&) {
      if (!is_locked(directory) || std::chrono::steady_clock::now() >= deadline) throw;
    }
    std::this_thread::sleep_for(between_looks_at_a_lock);
  }
}

}  // namespace

struct CheckpointFolder::Writing {
  std::filesystem::path root;
  int64_t keep_last;
  std::shared_ptr<const DirectoryLock> lock;
  int64_t step;
  int64_t bytes;
  std::filesystem::path partial;
  bool deletes_older;

  std::filesystem::path directory() const { return root / checkpoint_name(step); }

  void drop() const {
    std::error_code ignored;
    if (lock->is_in_place()) std::filesystem::remove_all(partial, ignored);
  }

  [[noreturn]] void abandon(const std::string& cause) const {
    drop();
    throw WriteError(concat("cannot write ", directory().string(), " (", bytes, " bytes of tensors in all): ", cause,
                            ". Nothing of it was kept"));
  }

  void complete(const CheckpointTexts& texts, std::map<std::string, FileDigest> files) const {
    for (const auto& [name, digest] : files) check_arrival(partial / name, digest.bytes);
    Manifest manifest{step, std::move(files)};
    const auto write_text = [&](const char* name, const std::string& text) {
      manifest.files[name] = write_file_durably(partial / name, text);
    };
    write_text(model_config_file_name, texts.model_config);
    write_text(run_config_file_name, texts.run_config);
    write_text(training_state_file_name, texts.training_state);
    if (!texts.model_index.empty()) write_text(model_index_file_name, texts.model_index);
    write_file_durably(partial / manifest_file_name, to_json(manifest));
    sync_directory(partial);
    set_aside_if_damaged(directory());
    replace_durably(partial, directory());
  }

  // Returns the error if a checkpoint cannot be deleted; otherwise an empty text.
  std::string delete_older() const {
    try {
      std::vector<int64_t> older;
      for (const auto& entry : std::filesystem::directory_iterator(root)) {
        const auto found = parse_checkpoint_name(entry.path().filename().string());
        if (found && *found < step && is_whole(entry.path())) older.push_back(*found);
      }
      std::ranges::sort(older, std::greater());
      for (size_t i = static_cast<size_t>(keep_last - 1); i < older.size(); ++i) {
        delete_directory_durably(root / checkpoint_name(older[i]));
      }
      return "";
    } catch (const std::runtime_error& error) {  // includes file system errors
      return error.what();
    }
  }
};

CheckpointFolder::CheckpointFolder(std::filesystem::path root, int64_t keep_last, double wait_seconds)
    : root_(std::move(root)), keep_last_(keep_last) {
  COPUS_CHECK(keep_last >= 1);
  create_directories_durably(root_);
  lock_ = lock_within(root_, wait_seconds);
  delete_leftovers(root_);
}

CheckpointFolder::~CheckpointFolder() { drop(); }

bool CheckpointFolder::is_in_place() const { return lock_->is_in_place(); }

void CheckpointFolder::put_back() {
  if (is_in_place()) return;
  finish();
  create_directories_durably(root_);
  lock_ = std::make_shared<const DirectoryLock>(root_);
  begun_.reset();
}

std::filesystem::path CheckpointFolder::begin(int64_t step, int64_t bytes, bool deletes_older) {
  COPUS_CHECK(step >= 0, step);
  finish();
  if (is_in_place()) delete_leftovers(root_);
  // Does not create missing parent folders: a new parent folder would not be locked.
  const std::filesystem::path partial = create_partial_folder(root_ / checkpoint_name(step));
  begun_ = std::make_shared<const Writing>(Writing{root_, keep_last_, lock_, step, bytes, partial, deletes_older});
  sync_directory(root_);
  return partial;
}

void CheckpointFolder::commit(CheckpointTexts texts, std::map<std::string, FileDigest> files) {
  COPUS_CHECK(begun_ != nullptr);
  std::packaged_task<std::string()> task([begun = std::exchange(begun_, nullptr), texts = std::move(texts),
                                          files = std::move(files)]() mutable {
    const std::shared_ptr<const Writing> writing = std::move(begun);  // releases the lock before others can see the end
    try {
      writing->complete(texts, std::move(files));
    } catch (const std::runtime_error& cause) {  // includes file system errors
      writing->abandon(cause.what());
    }
    return writing->deletes_older ? writing->delete_older() : std::string();
  });
  pending_ = task.get_future();
  std::thread(std::move(task)).detach();
}

void CheckpointFolder::drop() {
  if (begun_ != nullptr) std::exchange(begun_, nullptr)->drop();
}

void CheckpointFolder::abandon(const std::string& cause) {
  COPUS_CHECK(begun_ != nullptr);
  std::exchange(begun_, nullptr)->abandon(cause);
}

bool CheckpointFolder::is_idle() const {
  return !pending_.valid() || pending_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void CheckpointFolder::finish() {
  if (!pending_.valid()) return;
  try {
    deletion_failure_ = pending_.get();
  } catch (const UserError&) {
    if (is_in_place()) throw;
  }
}

void CheckpointFolder::check_none_is_later_than(int64_t step) const {
  const UsableCheckpoint newest = open_newest_usable(root_);
  if (!newest.checkpoint && !newest.damage.empty()) {
    throw UserError(concat(newest.damage.front(), "; no run is trained over it. Give another --run-dir"));
  }
  if (!newest.checkpoint || newest.checkpoint->step() <= step) return;
  throw UserError(concat(newest.checkpoint->directory().string(), " is a checkpoint of a later step than step ", step,
                         ", after which this run would train; go on from it with --resume, or give another --run-dir"));
}

}  // namespace copus
