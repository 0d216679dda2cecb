#include "copus/workshop/memory_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "copus/base/error.h"
#include "copus/base/files/write_all.h"
#include "copus/base/process/standard_descriptors.h"

namespace copus {

MemoryFile::MemoryFile(const std::string& content)
    : descriptor_(checked_descriptor(::memfd_create("copus-bench", MFD_CLOEXEC))) {
  COPUS_CHECK(descriptor_ >= 0, std::strerror(errno));
  COPUS_CHECK(write_all(descriptor_, content) == content.size(), std::strerror(errno));
}

MemoryFile::~MemoryFile() { ::close(descriptor_); }

std::string MemoryFile::path() const { return concat("/proc/", ::getpid(), "/fd/", descriptor_); }

}  // namespace copus
