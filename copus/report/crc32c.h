// CRC-32C (Castagnoli), which TFRecord files use.
#pragma once

#include <cstdint>
#include <string_view>

namespace copus {

uint32_t crc32c(std::string_view bytes);

// The checksum as TFRecord masks it, so that checksums of bytes that hold checksums stay useful.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace copus
