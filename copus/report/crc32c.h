// CRC-32C (Castagnoli), which TFRecord files use.
#pragma once

#include <cstdint>
#include <string_view>

namespace copus {

uint32_t crc32c(std::string_view bytes);

// TFRecord's form of it, which keeps the checksum of bytes that hold checksums from being degenerate.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace copus
