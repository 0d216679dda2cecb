// Mixes 64-bit values, for fingerprints and for keys of random streams and permutations. Not for secrets.
#pragma once

#include <cstdint>

namespace copus {

// A bijection of 64-bit values whose output bits each depend on all input bits: the finalizer of SplitMix64 (Steele,
// Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with Stafford's mix 13).
constexpr uint64_t mix_bits(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

// Extends the hash of a sequence by one value: different sequences give unrelated results.
constexpr uint64_t extend_hash(uint64_t hash, uint64_t value) {
  constexpr uint64_t golden_ratio = 0x9E3779B97F4A7C15ULL;
  return mix_bits((hash + golden_ratio) ^ mix_bits(value + golden_ratio));
}

}  // namespace copus
