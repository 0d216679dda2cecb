#include "copus/base/files/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>

#include "copus/base/error.h"

namespace copus {
namespace {

std::string to_hex(XXH128_hash_t hash) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (uint64_t half : {hash.high64, hash.low64}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += digits[(half >> shift) & 15];
  }
  return text;
}

}  // namespace

struct Hasher::State {
  XXH3_state_t value;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { COPUS_CHECK(XXH3_128bits_reset(&state_->value) == XXH_OK); }
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;

void Hasher::update(std::span<const std::byte> bytes) {
  COPUS_CHECK(XXH3_128bits_update(&state_->value, bytes.data(), bytes.size()) == XXH_OK);
}

std::string Hasher::hex() const { return to_hex(XXH3_128bits_digest(&state_->value)); }

std::string hash_hex(std::span<const std::byte> bytes) { return to_hex(XXH3_128bits(bytes.data(), bytes.size())); }

}  // namespace copus
