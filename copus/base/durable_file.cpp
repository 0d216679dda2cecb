#include "copus/base/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>  // renameat2
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "copus/base/error.h"

namespace copus {
namespace {

// Bytes that are hashed and then written in one piece, few enough to stay in the processor's cache between the two.
constexpr size_t write_piece = size_t{1} << 20;

std::string error_text(int error_number) { return std::generic_category().message(error_number); }

// Returns "; it needs 4096 bytes, 100 are free in /data" where the error is a lack of space, otherwise "".
std::string space_text(int error_number, uint64_t needed, const std::filesystem::path& directory) {
  if (error_number != ENOSPC && error_number != EDQUOT && error_number != EFBIG) return "";
  std::error_code ignored;
  const std::filesystem::space_info space = std::filesystem::space(directory, ignored);
  std::string text = concat("; the file needs ", needed, " bytes");
  if (!ignored) text += concat(", ", space.available, " are free in ", directory.string());
  return text + "; free some space there or choose another folder";
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

[[noreturn]] void fail_rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  throw UserError(concat("cannot rename ", from.string(), " to ", to.string(), ": ", error_text(errno)));
}

}  // namespace

std::filesystem::path partial_path(const std::filesystem::path& path) {
  std::filesystem::path result = path;
  result += partial_suffix;
  return result;
}

DurableFile::DurableFile(std::filesystem::path path, uint64_t expected_bytes)
    : path_(std::move(path)), partial_(partial_path(path_)), expected_bytes_(expected_bytes) {
  descriptor_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("create", errno, 0);
}

DurableFile::~DurableFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(partial_.c_str());
}

void DurableFile::fail(const char* action, int error_number, uint64_t needed_bytes) const {
  throw UserError(concat("cannot ", action, " ", path_.string(), ": ", error_text(error_number),
                         space_text(error_number, std::max(expected_bytes_, needed_bytes), folder_of(path_))));
}

void DurableFile::write(std::span<const std::byte> bytes) {
  COPUS_CHECK(descriptor_ >= 0, "write after commit of ", path_.string());
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), write_piece));
    const ssize_t count = ::write(descriptor_, piece.data(), piece.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      fail("write", errno, written_ + bytes.size());
    }
    hasher_.update(piece.first(static_cast<size_t>(count)));
    written_ += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void DurableFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

FileDigest DurableFile::commit() {
  COPUS_CHECK(descriptor_ >= 0, "second commit of ", path_.string());
  if (::fsync(descriptor_) != 0) fail("sync", errno, written_);
  // A network file system may report a full disk only here. After an error the descriptor is closed all the same.
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
  // A sync of a folder fails with EINVAL on some file systems; nothing more can be done for the names there.
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
  // A folder cannot replace one that is not empty by a rename. The two are exchanged instead, and the old one is then
  // deleted under the temporary name.
  if (std::filesystem::is_directory(to)) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      sync_directory(folder_of(to));
      std::filesystem::remove_all(from);
      return;
    }
    if (errno != EINVAL) fail_rename(from, to);
    // A file system without exchange (NFS) leaves `to` missing for a moment.
    std::filesystem::remove_all(to);
  }
  if (::rename(from.c_str(), to.c_str()) != 0) fail_rename(from, to);
  sync_directory(folder_of(to));
}

void write_directory_durably(const std::filesystem::path& directory, uint64_t expected_bytes,
                             const std::function<void(const std::filesystem::path& partial)>& fill) {
  const std::filesystem::path partial = partial_path(directory);
  std::error_code error;
  std::filesystem::remove_all(partial, error);
  if (error) throw UserError(concat("cannot delete ", partial.string(), ": ", error.message()));
  create_directories_durably(partial);
  try {
    fill(partial);
    sync_directory(partial);
    replace_durably(partial, directory);
  } catch (const UserError& cause) {
    std::filesystem::remove_all(partial, error);
    throw UserError(concat("cannot write ", directory.string(), " (", expected_bytes, " bytes in all): ", cause.what(),
                           ". Nothing of it was kept"));
  } catch (...) {
    std::filesystem::remove_all(partial, error);
    throw;
  }
}

std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const int error_number = errno;
  std::error_code ignored;
  if (!file) {
    const bool missing = error_number == ENOENT;
    throw UserError(concat("cannot read ", path.string(), ": ", missing ? "no such file" : error_text(error_number)));
  }
  if (std::filesystem::is_directory(path, ignored)) {
    throw UserError(concat("cannot read ", path.string(), ": it is a folder; expected a file"));
  }
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) throw UserError(concat("cannot read ", path.string(), ": the disk reported an error"));
  return text;
}

}  // namespace copus
