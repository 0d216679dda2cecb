#include "copus/base/files/regular_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/process/standard_descriptors.h"

namespace copus {
namespace {

std::string system_words(int error_number) { return std::generic_category().message(error_number); }

std::string no_file(mode_t mode) {
  const char* const kind = S_ISDIR(mode)    ? "a folder"
                           : S_ISFIFO(mode) ? "a pipe"
                           : S_ISSOCK(mode) ? "a socket"
                                            : "a device";
  return concat("it is ", kind, "; expected a file");
}

}  // namespace

// O_NONBLOCK is needed because opening a pipe would wait for its other end, and O_NOCTTY because a terminal may
// otherwise become the controlling terminal of this process.
OpenedFile open_regular_file(const std::filesystem::path& path, int flags) {
  const int descriptor = checked_descriptor(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
  if (descriptor < 0) {
    const int error = errno;
    // ENXIO is the error for a socket, and for a pipe without a reader.
    const bool is_no_file = error == ENXIO;
    return {.error_number = error,
            .error = is_no_file ? "it is a pipe, a socket or a device; expected a file" : system_words(error)};
  }
  struct stat status{};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) return {.descriptor = descriptor};
  ::close(descriptor);
  return {.error_number = EINVAL, .error = no_file(status.st_mode)};
}

std::string obstacle_to_file(const std::filesystem::path& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode) ? "" : no_file(status.st_mode);
}

bool is_file_at(int descriptor, const std::filesystem::path& path) {
  struct stat opened{}, named{};
  if (::fstat(descriptor, &opened) != 0) return true;
  if (::stat(path.c_str(), &named) != 0) return errno != ENOENT && errno != ENOTDIR && errno != ESTALE;
  return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

bool is_file_locked(const std::filesystem::path& path) {
  const int descriptor = open_regular_file(path, O_RDONLY).descriptor;
  if (descriptor < 0) return false;
  const bool locked = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return locked;
}

// A writer holds an exclusive lock. A process that only checks (is_file_locked) holds a shared lock for a moment,
// during which an exclusive lock is refused. So if the exclusive lock is refused, a shared lock is tried: if that is
// refused too, another process is the writer; otherwise the exclusive lock is tried again.
bool lock_as_writer(int descriptor) {
  const auto is_refused = [descriptor](int kind) {
    return ::flock(descriptor, kind | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  };
  constexpr int most_attempts = 2000;  // two seconds: processes that check the lock may be slow
  for (int attempt = 0; attempt < most_attempts; ++attempt) {
    if (!is_refused(LOCK_EX)) return true;
    if (is_refused(LOCK_SH)) return false;
    ::flock(descriptor, LOCK_UN);  // release it, so that it does not block another process that is also waiting
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  const OpenedFile file = open_regular_file(path_, O_RDONLY);
  if (file.descriptor < 0) {
    throw UserError(
        concat("cannot read ", path_.string(), ": ", file.error_number == ENOENT ? "no such file" : file.error));
  }
  descriptor_ = file.descriptor;
  struct stat status{};
  if (::fstat(descriptor_, &status) == 0) size_ = static_cast<uint64_t>(status.st_size);
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::skip_to(uint64_t offset) {
  if (::lseek(descriptor_, static_cast<off_t>(offset), SEEK_SET) < 0) {
    throw UserError(concat("cannot read ", path_.string(), ": ", system_words(errno)));
  }
}

size_t InputFile::read(std::span<char> buffer) {
  while (true) {
    const ssize_t count = ::read(descriptor_, buffer.data(), buffer.size());
    if (count >= 0) return static_cast<size_t>(count);
    if (errno != EINTR) throw UserError(concat("cannot read ", path_.string(), ": ", system_words(errno)));
  }
}

}  // namespace copus
