#include "copus/workshop/rank_results.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "copus/base/error.h"
#include "copus/base/write_all.h"

namespace copus {

namespace {

void write_whole(int descriptor, const std::string& text) {
  COPUS_CHECK(write_all(descriptor, text) == text.size(), std::strerror(errno));
}

}  // namespace

MemoryFile::MemoryFile(const std::string& content) : descriptor_(::memfd_create("copus-bench", MFD_CLOEXEC)) {
  COPUS_CHECK(descriptor_ >= 0, std::strerror(errno));
  write_whole(descriptor_, content);
}

MemoryFile::~MemoryFile() { ::close(descriptor_); }

std::string MemoryFile::path() const { return concat("/proc/", ::getpid(), "/fd/", descriptor_); }

void write_results(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  COPUS_CHECK(file >= 0, path, ": ", std::strerror(errno));
  write_whole(file, text);
  ::close(file);
}

}  // namespace copus
