// Random numbers as pure functions of (key, position): weights and samples are the same in whatever order, on whatever
// rank and in whatever chunks they are drawn. Nothing here has state.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace copus {

// Returns one block of 128 random bits: Philox4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). The four 32-bit words of the counter are, in the paper's order, the low and
// high halves of `counter_low`, then those of `counter_high`; the two words of the key likewise.
std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_high, uint64_t counter_low);

// Returns the key of the stream called `name` in a run seeded with `seed`. Different names or seeds give unrelated
// keys.
uint64_t stream_key(uint64_t seed, std::string_view name);

// Returns standard normal deviate number `index` of stream `key`, by Box and Muller's transform of Philox block index /
// 4 (with counter_high = 0). It is computed in double and rounded to float, so that two C libraries that disagree in
// the last bit of a double give the same float (but for about one value in 2^28).
float standard_normal(uint64_t key, uint64_t index);

// Writes out[i] = scale * (deviate number first_index + i), rounded to float once, for i in [0, count).
void fill_normal(uint64_t key, uint64_t first_index, uint64_t count, double scale, float* out);

}  // namespace copus
