// Reads of another process's memory on this machine, which copy each byte once and need nothing of that process but the
// address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace copus {

// Where bytes lie in a process.
struct PeerAddress {
  int64_t process = 0;  // its number, as processes here see it
  uint64_t token = 0;   // drawn when it started: processes that do not see each other may have one number
  const void* address = nullptr;
};

// Lets the other processes of this user read this one's memory, where the system otherwise reserves that to its
// ancestors (Yama's ptrace_scope 1, which is common).
void allow_peers_to_read();

// Tells where `address` of this process lies.
PeerAddress peer_address(const void* address);

// Copies `bytes` from there. False where the process is gone, where this system does not let one process read another
// (containers may deny process_vm_readv), and for memory that only its owner can read, as a device's may be; what was
// copied until then means nothing.
bool read_peer(const PeerAddress& from, std::byte* to, int64_t bytes);

}  // namespace copus
