#include "copus/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "copus/base/error.h"

namespace copus {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Opening a named pipe without O_NONBLOCK would wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw UserError(concat(path, ": cannot be opened: ", std::strerror(errno)));
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    throw UserError(concat(path, ": cannot be examined: ", std::strerror(error)));
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw UserError(concat(path, S_ISDIR(status.st_mode) ? ": is a directory" : ": is not a regular file",
                           "; expected a file that can be mapped into memory"));
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
    const int error = errno;
    ::close(descriptor);
    if (address == MAP_FAILED) throw UserError(concat(path, ": cannot be mapped: ", std::strerror(error)));
    data_ = static_cast<const std::byte*>(address);
  } else {
    ::close(descriptor);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace copus
