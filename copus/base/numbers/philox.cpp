#include "copus/base/numbers/philox.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "copus/base/numbers/mix_bits.h"

namespace copus {

namespace {

constexpr uint32_t low_word(uint64_t value) { return static_cast<uint32_t>(value); }
constexpr uint32_t high_word(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

// Returns the four deviates of one block. Box-Muller: with u in (0, 1) and v in [0, 1) uniform, sqrt(-2 ln u) * (cos
// 2*pi*v, sin 2*pi*v) are two independent standard normal numbers.
std::array<double, 4> normal_block(uint64_t key, uint64_t block) {
  const std::array<uint32_t, 4> bits = philox(key, 0, block);
  std::array<double, 4> deviates;
  for (size_t pair = 0; pair < 4; pair += 2) {
    const double u = (bits[pair] + 0.5) * 0x1p-32;
    const double v = bits[pair + 1] * 0x1p-32;
    const double radius = std::sqrt(-2.0 * std::log(u));
    const double angle = 2.0 * std::numbers::pi * v;
    deviates[pair] = radius * std::cos(angle);
    deviates[pair + 1] = radius * std::sin(angle);
  }
  return deviates;
}

}  // namespace

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  // Multipliers from table 2 and Weyl increments of the key from section 3.1 of the paper that philox.h names.
  constexpr uint64_t multiplier_0 = 0xd2511f53;
  constexpr uint64_t multiplier_1 = 0xcd9e8d57;
  constexpr uint32_t weyl_0 = 0x9e3779b9;
  constexpr uint32_t weyl_1 = 0xbb67ae85;

  std::array<uint32_t, 4> counter{low_word(counter_low), high_word(counter_low), low_word(counter_high),
                                  high_word(counter_high)};
  uint32_t key_0 = low_word(key);
  uint32_t key_1 = high_word(key);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product_0 = multiplier_0 * counter[0];
    const uint64_t product_1 = multiplier_1 * counter[2];
    counter = {high_word(product_1) ^ counter[1] ^ key_0, low_word(product_1),
               high_word(product_0) ^ counter[3] ^ key_1, low_word(product_0)};
    key_0 += weyl_0;
    key_1 += weyl_1;
  }
  return counter;
}

uint64_t stream_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a, 64 bits
  for (const char character : name) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3ULL;
  }
  // Mixes the seed before combining it with the hash, so that a small change of the seed cannot cancel one of the name.
  return mix_bits(mix_bits(seed + 0x9e3779b97f4a7c15ULL) ^ hash);
}

float standard_normal(uint64_t key, uint64_t index) {
  return static_cast<float>(normal_block(key, index / 4)[index % 4]);
}

void fill_normal(uint64_t key, uint64_t first_index, uint64_t count, double scale, float* out) {
  for (uint64_t done = 0; done < count;) {
    const uint64_t index = first_index + done;
    const uint64_t lane = index % 4;
    const uint64_t lanes = std::min<uint64_t>(4 - lane, count - done);
    const std::array<double, 4> deviates = normal_block(key, index / 4);
    for (uint64_t i = 0; i < lanes; ++i) out[done + i] = static_cast<float>(scale * deviates[lane + i]);
    done += lanes;
  }
}

}  // namespace copus
