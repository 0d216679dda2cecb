#include "copus/workshop/rank_results.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "copus/base/error.h"

namespace copus {

namespace {

void write_all(int descriptor, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(descriptor, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    COPUS_CHECK(written > 0, std::strerror(errno));
    done += static_cast<size_t>(written);
  }
}

}  // namespace

MemoryFile::MemoryFile(const std::string& content) : descriptor_(::memfd_create("copus-bench", MFD_CLOEXEC)) {
  COPUS_CHECK(descriptor_ >= 0, std::strerror(errno));
  write_all(descriptor_, content);
}

MemoryFile::~MemoryFile() { ::close(descriptor_); }

std::string MemoryFile::path() const { return concat("/proc/", ::getpid(), "/fd/", descriptor_); }

void write_results(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  COPUS_CHECK(file >= 0, path, ": ", std::strerror(errno));
  write_all(file, text);
  ::close(file);
}

}  // namespace copus
