// Files that exist whole or not at all: they are written under a temporary name, synced to the disk, then renamed.
//
// The temporary name is the final one with six random characters and `partial_suffix` appended, in the same folder. It
// is always a new one: what is there already, a symbolic link too, is neither written into nor deleted. A process that
// is killed leaves its file or folder behind; nobody reads it, it is in nobody's way, and whoever finds it may delete
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "copus/base/hash.h"

namespace copus {

inline constexpr std::string_view partial_suffix = ".partial";

// Appends partial_suffix to `path`.
std::filesystem::path partial_path(const std::filesystem::path& path);

// The size and checksum of a file's content.
struct FileDigest {
  uint64_t bytes = 0;
  std::string checksum;  // hash_hex of the content
  bool operator==(const FileDigest&) const = default;
};

// A file that is being written. Until commit() the final name is untouched; without commit() nothing is left. A folder,
// a pipe or a device of that name is refused.
// Errors of the disk (full, read-only, no such folder) are UserErrors that name the file and, for a full disk, the
// bytes that were needed and those that were free.
class DurableFile {
 public:
  // `expected_bytes` is the size that the file will have, 0 where it is not known; it serves messages, and to see early
  // that the file will not fit.
  explicit DurableFile(std::filesystem::path path, uint64_t expected_bytes = 0);
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  ~DurableFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);

  // Syncs the content, gives the file its final name (replacing a file of that name) and syncs the folder.
  FileDigest commit();

 private:
  [[noreturn]] void fail(const char* action, int error_number, uint64_t needed_bytes) const;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  uint64_t expected_bytes_;
  uint64_t written_ = 0;
  Hasher hasher_;
  int descriptor_ = -1;
};

// Writes a small file in one call.
FileDigest write_file_durably(const std::filesystem::path& path, std::string_view content);

// Makes the names in a folder (creations, renames, removals) survive a power cut.
void sync_directory(const std::filesystem::path& directory);

// Creates a folder and the missing ones above it, and makes their names durable. Throws UserError that names the
// folder.
void create_directories_durably(const std::filesystem::path& directory);

// Renames a file or folder within one file system and makes the new name durable. A file or folder that already has
// the name `to` is replaced in one atomic step, so that `to` always names the old or the new one (a folder on a file
// system that cannot exchange names, such as NFS, is deleted first).
void replace_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// Creates an empty folder under a new temporary name of `target`, in a folder that is there, and returns it. Nobody
// else writes into it, whatever they know of `target`. Throws UserError where it cannot be made.
std::filesystem::path create_partial_folder(const std::filesystem::path& target);

// Creates a folder whole or not at all: `fill` writes its files, durably, into the folder it is given, which then
// becomes `directory`; a folder of that name has to be empty. When `fill` throws, nothing is left and `directory` is as
// before; a UserError is passed on with `expected_bytes`, the size of the whole folder. What a process that was killed
// has left of writing the same folder is deleted: it is known by its name, and by a locked file in it where its writer
// lives. Nothing else is.
void write_directory_durably(const std::filesystem::path& directory, uint64_t expected_bytes,
                             const std::function<void(const std::filesystem::path& partial)>& fill);

// Nothing that is read as a text at once is larger.
inline constexpr uint64_t most_text_bytes = uint64_t{256} << 20;

// Returns the whole content of a small file. Throws UserError when it cannot be read, is no regular file, or is larger
// than `most_bytes`.
std::string read_text_file(const std::filesystem::path& path, uint64_t most_bytes = most_text_bytes);

}  // namespace copus
