// Writes files so that they exist whole or not at all. A file is written under a temporary name, synced to the disk,
// then renamed.
//
// The temporary name is the final name followed by six random characters and `partial_suffix`, in the same folder. It
// is always new, so no existing file or symbolic link is overwritten or deleted. A process that is killed leaves its
// temporary file or folder behind. Nothing reads these leftovers, and anyone may delete them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "copus/base/files/hash.h"

namespace copus {

inline constexpr std::string_view partial_suffix = ".partial";

// The size and checksum of a file's content.
struct FileDigest {
  uint64_t bytes = 0;
  std::string checksum;  // hash_hex of the content
  bool operator==(const FileDigest&) const = default;
};

// A file that is being written. Until commit(), the final name is untouched; without commit(), the destructor deletes
// the temporary file. The constructor throws UserError if the name belongs to a folder, a pipe or a device. Disk errors
// (full, read-only, no such folder) are UserErrors that name the file and, for a full disk, the bytes needed and the
// bytes free.
class DurableFile {
 public:
  // `expected_bytes` is the final size of the file, or 0 if unknown. Messages contain it, and the constructor fails
  // early if the file will not fit.
  explicit DurableFile(std::filesystem::path path, uint64_t expected_bytes = 0);
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  ~DurableFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);

  // Syncs the content, renames the file to its final name (replacing an existing file) and syncs the folder.
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

// Makes created, renamed and removed names in a folder survive a power cut.
void sync_directory(const std::filesystem::path& directory);

// Creates a folder with its missing parents and makes their names durable. Throws UserError that names the folder.
void create_directories_durably(const std::filesystem::path& directory);

// Renames a file or folder within one file system and makes the new name durable. An existing file or folder `to` is
// replaced in one atomic step: at any time, `to` is either the old or the new file or folder. On file systems that
// cannot exchange names, such as NFS, `to` is missing for a moment. If an old folder cannot be deleted, its rest keeps
// the name `from` or a new temporary name. Throws UserError if `to` could not be replaced or synced.
void replace_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// Deletes a folder. First renames it to a new temporary name, so that `directory` never holds only a part of its files.
// Throws UserError if the folder cannot be deleted. A folder without write permission is then unchanged; what remains
// of any other folder has the temporary name.
void delete_directory_durably(const std::filesystem::path& directory);

// Creates an empty folder under a new temporary name for `target` and returns its path. The parent folder must exist.
// No other process writes into the new folder, not even one that writes the same `target`. Throws UserError if the
// folder cannot be created.
std::filesystem::path create_partial_folder(const std::filesystem::path& target);

// Creates a folder whole or not at all. `fill` writes its files durably into a temporary folder, which is then renamed
// to `directory`. An existing folder of that name must be empty. If `fill` throws, nothing is left behind and
// `directory` is unchanged; a UserError is rethrown with `expected_bytes`, the size of the whole folder, in its
// message.
//
// First deletes what killed writers of the same folder have left: folders with a temporary name for `directory` whose
// mark file no living writer has locked.
void write_directory_durably(const std::filesystem::path& directory, uint64_t expected_bytes,
                             const std::function<void(const std::filesystem::path& partial)>& fill);

// The upper limit for files that are read whole as text.
inline constexpr uint64_t most_text_bytes = uint64_t{256} << 20;

// Returns the whole content of a small file. Throws UserError if the file cannot be read, is not a regular file, or is
// larger than `most_bytes`.
std::string read_text_file(const std::filesystem::path& path, uint64_t most_bytes = most_text_bytes);

}  // namespace copus
