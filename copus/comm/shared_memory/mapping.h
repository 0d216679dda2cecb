// A file that has addresses in this process until the end of its owner.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>

namespace copus {

struct Unmap {
  size_t bytes = 0;
  void operator()(std::byte* address) const { ::munmap(address, bytes); }
};

// Null where the file could not be mapped.
using Mapping = std::unique_ptr<std::byte, Unmap>;

}  // namespace copus
