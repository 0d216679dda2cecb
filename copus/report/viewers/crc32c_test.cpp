#include "copus/report/viewers/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace copus {
namespace {

// Test vectors of RFC 3720, section B.4, and the check value of the CRC catalogue.
TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(crc32c(""), 0x00000000U);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
  std::string ascending;
  for (char byte = 0; byte < 32; ++byte) ascending.push_back(byte);
  EXPECT_EQ(crc32c(ascending), 0x46DD794EU);
}

TEST(Crc32c, Masked) {
  // Computed as ((0xE3069283 >> 15) | (0xE3069283 << 17)) + 0xA282EAD8, modulo 2^32.
  EXPECT_EQ(masked_crc32c("123456789"), 0xC78AB0E5U);
}

}  // namespace
}  // namespace copus
