// A caching allocator for host tensors. It keeps freed blocks, by size, and uses huge pages. A step allocates and frees
// activations of tens of MB many times. If freed memory went back to the kernel, the next access would cost a page
// fault per 4 KiB, ten times the cost of the access itself (docs/decisions/model.md).
#pragma once

#include <cstdint>
#include <new>

namespace copus {

struct HostMemory {
  int64_t used_bytes;       // in live tensors
  int64_t peak_used_bytes;  // since reset_peak_host_memory
  int64_t reserved_bytes;   // from the operating system, in live tensors or cached
};

// Makes all later host tensors of this process use the allocator. A second call does nothing. The allocator is
// thread-safe.
void install_caching_allocator();

HostMemory host_memory();
void reset_peak_host_memory();

// Thrown by an allocation beyond the limit, for a tensor or a rank's training state.
class HostMemoryExceeded : public std::bad_alloc {
 public:
  const char* what() const noexcept override { return "the host memory that this rank may use is used up"; }
};

// Sets the limit of reserved bytes (0, the initial value: no limit), and returns cached blocks to the operating system.
// An allocation beyond the limit first returns all cached blocks; if that is not enough it throws HostMemoryExceeded.
// Live tensors beyond a new limit stay.
void set_host_memory_limit(int64_t bytes);

}  // namespace copus
