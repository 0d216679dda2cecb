// Reads of another process's memory on this machine, which copy each byte once and need nothing of that process but the
// address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace copus {

// Where bytes lie in a process.
struct PeerAddress {
  int64_t process = 0;  // its number, as processes here see it
  const void* address = nullptr;
};

// Tells where `address` of this process lies.
PeerAddress peer_address(const void* address);

// Copies `bytes` from there. False where the process is gone or this system does not let one process read another
// (containers may deny process_vm_readv); what was copied until then means nothing.
bool read_peer(const PeerAddress& from, std::byte* to, int64_t bytes);

}  // namespace copus
