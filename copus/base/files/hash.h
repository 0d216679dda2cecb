// Checksums of files and buffers: 128-bit XXH3, as `xxhsum -H2` prints it. They detect damage, not forgery.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace copus {

// A checksum of bytes that arrive in pieces.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();

  void update(std::span<const std::byte> bytes);

  // Returns the checksum of all bytes so far: 32 lower-case hexadecimal digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the checksum of one buffer, in the form of Hasher::hex().
std::string hash_hex(std::span<const std::byte> bytes);

}  // namespace copus
