#include "copus/base/files/hash.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace copus {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// The value for empty input is from the specification's test vectors; the other is what `xxhsum -H2` prints.
TEST(Hash, KnownValues) {
  EXPECT_EQ(hash_hex({}), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_hex(bytes_of("copus\n")), "e9d7a82d5c67b875cb1017b9c4570ae9");
}

TEST(Hash, PiecesGiveTheSameAsTheWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31 % 251);
  for (size_t piece : {1u, 7u, 240u, 1024u, 5000u}) {
    Hasher hasher;
    for (size_t at = 0; at < text.size(); at += piece)
      hasher.update(bytes_of(std::string_view(text).substr(at, piece)));
    EXPECT_EQ(hasher.hex(), hash_hex(bytes_of(text))) << piece;
  }
}

TEST(Hash, EveryFlippedBitChangesIt) {
  std::vector<std::byte> data(300, std::byte{5});
  const std::string original = hash_hex(data);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] ^= std::byte{1};
    EXPECT_NE(hash_hex(data), original) << i;
    data[i] ^= std::byte{1};
  }
}

}  // namespace
}  // namespace copus
