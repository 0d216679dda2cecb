// A caching allocator for host tensors. A step allocates and frees activations of tens of MB many times. If freed
// memory went back to the kernel, the next access would cost a page fault per 4 KiB, ten times the cost of the access
// itself (docs/decisions/model.md). This allocator keeps freed blocks by size, on huge pages.
#pragma once

#include <cstdint>
#include <new>

namespace copus {

struct HostMemory {
  int64_t used_bytes;       // bytes in live tensors
  int64_t peak_used_bytes;  // since reset_peak_host_memory
  int64_t reserved_bytes;   // bytes from the operating system, live or cached
};

// Makes every later host tensor of this process use the allocator; earlier tensors are unaffected. A second call does
// nothing. Thread-safe, as the tensors are.
void install_caching_allocator();

HostMemory host_memory();
void reset_peak_host_memory();

// An allocation beyond the limit, of a tensor or of a rank's training state.
class HostMemoryExceeded : public std::bad_alloc {
 public:
  const char* what() const noexcept override { return "the host memory that this rank may use is used up"; }
};

// Sets the limit of reserved bytes; 0, the initial value, means no limit. Returns cached blocks to the operating
// system. The allocator returns them again before a tensor that exceeds the limit throws HostMemoryExceeded. Live
// tensors beyond a new limit stay.
void set_host_memory_limit(int64_t bytes);

}  // namespace copus
