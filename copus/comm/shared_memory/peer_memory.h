// Reads the memory of another process on this machine. Each byte is copied only once, and the other process only has to
// send the address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace copus {

// The position of bytes in a process.
struct PeerAddress {
  int64_t process = 0;  // its pid, as seen in this container
  uint64_t token = 0;   // random, because processes in different containers may have the same pid
  const void* address = nullptr;
};

// Lets the other processes of this user read this process' memory, even if the system otherwise allows this only to its
// ancestors (Yama's ptrace_scope 1, which is common).
void allow_peers_to_read();

// Returns the position of `address` in this process.
PeerAddress peer_address(const void* address);

// Copies `bytes` from an address of another process. Returns false, with undefined content at the destination, in three
// cases: the process is gone; this system does not let one process read another (containers may deny process_vm_readv);
// or only the owner can read the memory, as with some device memory.
bool read_peer(const PeerAddress& from, std::byte* to, int64_t bytes);

}  // namespace copus
