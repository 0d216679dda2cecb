#include "copus/base/files/durable_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>  // renameat2
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/regular_file.h"
#include "copus/base/files/write_all.h"
#include "copus/base/files/write_error.h"
#include "copus/base/process/standard_descriptors.h"

namespace copus {
namespace {

namespace fs = std::filesystem;

// Bytes that are hashed and then written as one piece: few enough to stay in the processor's cache in between.
constexpr size_t write_piece = size_t{1} << 20;

std::string error_text(int error_number) { return std::generic_category().message(error_number); }

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

[[noreturn]] void fail_rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  throw UserError(concat("cannot rename ", from.string(), " to ", to.string(), ": ", error_text(errno)));
}

constexpr size_t random_characters = 6;

// Makes a temporary name that almost certainly does not exist yet. The caller creates the file or folder exclusively,
// and tries another name if this one exists.
fs::path new_partial_path(const fs::path& path) {
  std::random_device random;
  std::string letters(random_characters, 'a');
  for (char& letter : letters) letter = "abcdefghijklmnopqrstuvwxyz012345"[random() % 32];
  fs::path partial = path;
  partial += concat(".", letters, partial_suffix);
  return partial;
}

// Tells whether new_partial_path could have made the name `partial` for a file or folder called `name`.
bool is_partial_of(const std::string& name, const std::string& partial) {
  const size_t size = name.size() + 1 + random_characters + partial_suffix.size();
  return partial.size() == size && partial.starts_with(name + ".") && partial.ends_with(partial_suffix);
}

// Calls `create` with new temporary names until it succeeds, and returns that name. `create` returns false and sets
// errno on failure. Tries another name only if the name existed already; after any other error, returns an empty path.
template <class Create>
fs::path create_partial(const fs::path& path, const Create& create) {
  while (true) {
    fs::path partial = new_partial_path(path);
    if (create(partial)) return partial;
    if (errno != EEXIST) return {};
  }
}

// Renames a folder to a new temporary name, which it returns.
fs::path move_aside(const fs::path& folder) {
  fs::path aside =
      create_partial(folder, [&](const fs::path& partial) { return ::rename(folder.c_str(), partial.c_str()) == 0; });
  if (aside.empty()) throw UserError(concat("cannot rename ", folder.string(), ": ", error_text(errno)));
  return aside;
}

// A mark file distinguishes an unfinished folder from a user's folder that happens to have a temporary name. The writer
// of the folder holds the mark file locked as long as the writer lives.
constexpr const char* mark_name = ".copus-writing";
constexpr std::string_view mark_text = "Copus is writing this folder, or was when it died: it may be deleted then.\n";

// A folder under a temporary name, deleted unless it is completed.
class UnfinishedFolder {
 public:
  explicit UnfinishedFolder(const fs::path& target) : target_(target) {
    create_directories_durably(folder_of(target));
    delete_leftovers();
    path_ = create_partial_folder(target);
    const OpenedFile mark = open_regular_file(path_ / mark_name, O_RDWR | O_CREAT | O_EXCL);
    mark_ = mark.descriptor;
    const bool is_marked = mark_ >= 0 && write_all(mark_, mark_text) == mark_text.size();
    // If the file system has no locks, other processes cannot lock the mark file either, so none deletes the folder.
    if (is_marked) ::flock(mark_, LOCK_EX | LOCK_NB);
    if (is_marked) return;
    const std::string error = mark_ < 0 ? mark.error : error_text(errno);
    discard();
    throw UserError(concat("cannot write into ", path_.string(), ": ", error));
  }
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;
  ~UnfinishedFolder() { discard(); }

  const fs::path& path() const { return path_; }

  void complete() {
    ::unlink((path_ / mark_name).c_str());
    sync_directory(path_);
    if (::rename(path_.c_str(), target_.c_str()) != 0) fail_rename(path_, target_);
    is_complete_ = true;
    sync_directory(folder_of(target_));
  }

 private:
  void discard() {
    std::error_code ignored;
    if (!is_complete_) fs::remove_all(path_, ignored);
    if (mark_ >= 0) ::close(std::exchange(mark_, -1));
  }

  void delete_leftovers() const {
    std::vector<fs::path> candidates;
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_of(target_), ignored)) {
      const bool is_folder = entry.symlink_status(ignored).type() == fs::file_type::directory;
      if (is_folder && is_partial_of(target_.filename(), entry.path().filename())) candidates.push_back(entry.path());
    }
    for (const fs::path& candidate : candidates) {
      const OpenedFile mark = open_regular_file(candidate / mark_name, O_RDWR | O_NOFOLLOW);
      if (mark.descriptor < 0) continue;
      if (::flock(mark.descriptor, LOCK_EX | LOCK_NB) == 0) fs::remove_all(candidate, ignored);
      ::close(mark.descriptor);
    }
  }

  const fs::path target_;
  fs::path path_;
  int mark_ = -1;
  bool is_complete_ = false;
};

}  // namespace

fs::path create_partial_folder(const fs::path& target) {
  fs::path partial = create_partial(target, [](const fs::path& path) { return ::mkdir(path.c_str(), 0777) == 0; });
  if (partial.empty()) throw UserError(concat("cannot create the folder ", target.string(), ": ", error_text(errno)));
  return partial;
}

DurableFile::DurableFile(std::filesystem::path path, uint64_t expected_bytes)
    : path_(std::move(path)), expected_bytes_(expected_bytes) {
  // A rename would replace a device or a pipe with the file.
  const std::string obstacle = obstacle_to_file(path_);
  if (!obstacle.empty()) throw UserError(concat("cannot create ", path_.string(), ": ", obstacle));
  partial_ = create_partial(path_, [this](const fs::path& partial) {
    descriptor_ = checked_descriptor(::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    return descriptor_ >= 0;
  });
  if (descriptor_ < 0) fail("create", errno, 0);
}

DurableFile::~DurableFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(partial_.c_str());
}

void DurableFile::fail(const char* action, int error_number, uint64_t needed_bytes) const {
  throw WriteError(concat("cannot ", action, " ", path_.string(), ": ",
                          write_error_text(error_number, std::max(expected_bytes_, needed_bytes), path_)));
}

void DurableFile::write(std::span<const std::byte> bytes) {
  COPUS_CHECK(descriptor_ >= 0, "write after commit of ", path_.string());
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), write_piece));
    // Hashes before writing, because the bytes may come from a mapped file that was truncated meanwhile. Hashing them
    // then raises SIGBUS, which is reported clearly; write() would only report a bad address.
    hasher_.update(piece);
    const std::string_view text(reinterpret_cast<const char*>(piece.data()), piece.size());
    if (write_all(descriptor_, text) < text.size()) fail("write", errno, written_ + bytes.size());
    written_ += piece.size();
    bytes = bytes.subspan(piece.size());
  }
}

void DurableFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

FileDigest DurableFile::commit() {
  COPUS_CHECK(descriptor_ >= 0, "second commit of ", path_.string());
  if (::fsync(descriptor_) != 0) fail("sync", errno, written_);
  // A network file system may report a full disk only here. Even after an error the descriptor is closed.
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    const int error_number = errno;
    ::unlink(partial_.c_str());
    fail("close", error_number, written_);
  }
  if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    const int error_number = errno;
    ::unlink(partial_.c_str());
    fail("rename the finished file to", error_number, written_);
  }
  sync_directory(folder_of(path_));
  return {written_, hasher_.hex()};
}

FileDigest write_file_durably(const std::filesystem::path& path, std::string_view content) {
  DurableFile file(path, content.size());
  file.write(content);
  return file.commit();
}

void sync_directory(const std::filesystem::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw UserError(concat("cannot open folder ", directory.string(), ": ", error_text(errno)));
  const int result = ::fsync(descriptor);
  const int error_number = errno;
  ::close(descriptor);
  // Some file systems refuse to sync a folder with EINVAL. Nothing more can be done for the names there.
  if (result != 0 && error_number != EINVAL) {
    throw UserError(concat("cannot sync folder ", directory.string(), ": ", error_text(error_number)));
  }
}

void create_directories_durably(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> parents;  // parents of the missing folders
  for (std::filesystem::path path = directory; !path.empty() && !std::filesystem::exists(path, error);) {
    parents.push_back(folder_of(path));
    path = path.parent_path();
  }
  std::filesystem::create_directories(directory, error);
  if (error) throw UserError(concat("cannot create the folder ", directory.string(), ": ", error.message()));
  for (const std::filesystem::path& parent : parents) sync_directory(parent);
}

void replace_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code ignored;  // the new folder is complete, whatever remains of the old one
  fs::path old;             // where the replaced folder is now
  if (fs::is_directory(to)) {
    // A rename cannot replace a folder that is not empty, so the two folders are exchanged.
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      sync_directory(folder_of(to));
      fs::remove_all(from, ignored);
      return;
    }
    if (errno != EINVAL) fail_rename(from, to);
    old = move_aside(to);  // a file system without exchange (NFS)
  }
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error_number = errno;
    if (!old.empty()) fs::rename(old, to, ignored);
    errno = error_number;
    fail_rename(from, to);
  }
  sync_directory(folder_of(to));
  if (!old.empty()) fs::remove_all(old, ignored);
}

void delete_directory_durably(const std::filesystem::path& directory) {
  if (::access(directory.c_str(), W_OK) != 0) {
    throw UserError(concat("cannot delete ", directory.string(), ": ", error_text(errno)));
  }
  const fs::path aside = move_aside(directory);
  sync_directory(folder_of(directory));
  std::error_code error;
  fs::remove_all(aside, error);
  if (error) throw UserError(concat("cannot delete ", aside.string(), ": ", error.message()));
}

void write_directory_durably(const std::filesystem::path& directory, uint64_t expected_bytes,
                             const std::function<void(const std::filesystem::path& partial)>& fill) {
  try {
    UnfinishedFolder unfinished(directory);
    fill(unfinished.path());
    unfinished.complete();
  } catch (const UserError& cause) {
    throw WriteError(concat("cannot write ", directory.string(), " (", expected_bytes, " bytes in all): ", cause.what(),
                            ". Nothing of it was kept"));
  }
}

std::string read_text_file(const std::filesystem::path& path, uint64_t most_bytes) {
  InputFile file(path);
  const auto check = [&](uint64_t bytes) {
    if (bytes <= most_bytes) return;
    throw UserError(concat("cannot read ", path.string(), ": it has more than ", most_bytes,
                           " bytes, too many for a text of its kind; is it the right file?"));
  };
  check(file.size());
  std::string text;
  text.reserve(file.size());
  std::array<char, size_t{64} << 10> piece;
  while (const size_t count = file.read(piece)) {
    check(text.size() + count);
    text.append(piece.data(), count);
  }
  return text;
}

}  // namespace copus
