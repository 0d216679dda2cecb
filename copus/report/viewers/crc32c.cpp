#include "copus/report/viewers/crc32c.h"

#include <array>
#include <bit>

namespace copus {
namespace {

// Polynomial 0x1EDC6F41 of RFC 3720, section 12.1, bits reflected.
constexpr uint32_t reflected_polynomial = 0x82F63B78;

constexpr std::array<uint32_t, 256> table = [] {
  std::array<uint32_t, 256> result{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ (remainder & 1 ? reflected_polynomial : 0);
    result[byte] = remainder;
  }
  return result;
}();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t remainder = 0xFFFFFFFF;
  for (const char byte : bytes) remainder = (remainder >> 8) ^ table[(remainder ^ static_cast<uint8_t>(byte)) & 0xFF];
  return ~remainder;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t checksum = crc32c(bytes);
  return std::rotr(checksum, 15) + 0xA282EAD8;
}

}  // namespace copus
