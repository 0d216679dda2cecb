// CRC-32C (Castagnoli), which TFRecord files use.
#pragma once

#include <cstdint>
#include <string_view>

namespace copus {

uint32_t crc32c(std::string_view bytes);

// The masked checksum of TFRecord. Without the mask, the checksum of data that contain checksums would be weak.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace copus
