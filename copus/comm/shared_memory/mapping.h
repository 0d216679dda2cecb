// A file mapped into this process until the mapping's owner is destroyed.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>

namespace copus {

struct Unmap {
  size_t bytes = 0;
  void operator()(std::byte* address) const { ::munmap(address, bytes); }
};

// Null if the file could not be mapped.
using Mapping = std::unique_ptr<std::byte, Unmap>;

}  // namespace copus
