#include "copus/comm/shared_memory/peer_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace copus {

PeerAddress peer_address(const void* address) { return {getpid(), address}; }

bool read_peer(const PeerAddress& from, std::byte* to, int64_t bytes) {
  if (from.process == getpid()) {  // ranks that are threads of one process
    std::memcpy(to, from.address, bytes);
    return true;
  }
  for (int64_t done = 0; done < bytes;) {
    const auto left = static_cast<size_t>(bytes - done);
    const iovec local{to + done, left};
    const iovec remote{const_cast<std::byte*>(static_cast<const std::byte*>(from.address) + done), left};
    const ssize_t count = process_vm_readv(static_cast<pid_t>(from.process), &local, 1, &remote, 1, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += count;
  }
  return true;
}

}  // namespace copus
