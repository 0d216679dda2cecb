// A checkpoint's manifest.json: the list of its files, and the checksums that show whether they are intact.
//
//   {"format": "copus-checkpoint", "version": 1, "step": 100,
//    "files": {"config.json": {"bytes": 700, "xxh3_128": "<32 hexadecimal digits>"}, ...},
//    "xxh3_128": "<checksum of this object without this field, as compact JSON with sorted keys>"}
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"

namespace copus {

inline constexpr const char* manifest_file_name = "manifest.json";

struct Manifest {
  int64_t step = 0;
  std::map<std::string, FileDigest> files;  // every file of the checkpoint except the manifest
  bool operator==(const Manifest&) const = default;
};

// A damaged checkpoint. Another format version or missing read permission is not damage.
class CheckpointDamage : public UserError {
 public:
  CheckpointDamage(const std::filesystem::path& directory, const std::string& reason);

  // Describes the damage in one clause that names the folder and the file.
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

// Throws CheckpointDamage: the checkpoint in `directory` is damaged, for this reason.
[[noreturn]] void fail_damaged(const std::filesystem::path& directory, const std::string& reason);

std::string to_json(const Manifest& manifest);

// Reads the manifest of the checkpoint in `directory`. Throws CheckpointDamage if it is missing or damaged, and
// UserError if it is of a different version.
Manifest read_manifest(const std::filesystem::path& directory);

// Reads the manifest of the checkpoint in `directory`, which must have a checkpoint's name. Throws as read_manifest()
// does. Also throws CheckpointDamage if the step in the manifest differs from the step in the folder's name.
Manifest read_named_manifest(const std::filesystem::path& directory);

// Checks that every file of the manifest exists with its size, and these files with their checksums. Throws
// CheckpointDamage that names the first file that fails the check.
void verify_files(const std::filesystem::path& directory, const Manifest& manifest, std::span<const std::string> names);
// Checks all files of the manifest.
void verify_files(const std::filesystem::path& directory, const Manifest& manifest);

}  // namespace copus
